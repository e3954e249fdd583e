"""List the local tier by its directories alone, without opening an entry."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tuner.build_cache import headers
from tuner.build_cache.headers import DamagedEntryError, Header, NewerFormatError
from tuner.build_cache.keys import is_digest, is_kind
from tuner.build_cache.local import LocalTier

_HEAD_BYTES = 1 << 16


class IndexedEntry(NamedTuple):
    """An entry as its directory shows it; a tuple, since there may be very many.

    Attributes:
        kind: Kind of its key.
        digest: Digest of its key.
        folder: Folder of its file.
        n_bytes: Size on disk, with its blobs.
        used: Last use, seconds since 1970; never later than now.
    """

    kind: str
    digest: str
    folder: str
    n_bytes: int
    used: float
    blob_names: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Path of its file."""
        return Path(self.folder, self.digest)

    @property
    def blobs(self) -> tuple[Path, ...]:
        """Paths of its blobs."""
        return tuple(Path(self.folder, name) for name in self.blob_names)


@dataclass(frozen=True)
class OrphanBlobs:
    """Blobs without an entry, left by a process that was killed while it wrote or removed it."""

    digest: str
    blobs: tuple[Path, ...]


def kinds(local: LocalTier) -> list[str]:
    """Return the kinds that may have entries, sorted."""
    return sorted(entry.name for entry in _list_folder(local.entries) if is_kind(entry.name))


def entries(local: LocalTier, kind: str | None = None) -> Iterator[IndexedEntry]:
    """List entries in no order; one that is removed during the listing may be missing."""
    for item in scan(local, kind):
        if isinstance(item, IndexedEntry):
            yield item


def scan(local: LocalTier, kind: str | None = None) -> Iterator[IndexedEntry | OrphanBlobs]:
    """List entries, and blobs without an entry."""
    now = time.time()
    for name in kinds(local) if kind is None else [kind]:
        for folder in _list_folder(local.entries / name):
            yield from _scan_folder(folder.path, name, now)


def header_of(entry: IndexedEntry) -> Header | None:
    """Read the header of an entry; None if it cannot be read or is damaged."""
    try:
        with entry.path.open("rb") as stream:
            data = stream.read(_HEAD_BYTES)
            n_header, _ = headers.read_prefix(data)
            missing = headers.PREFIX.size + n_header - len(data)
            if missing > 0:
                data += stream.read(missing)
        return headers.read_header(data)[0]
    except (OSError, DamagedEntryError, NewerFormatError):
        return None


def _scan_folder(folder: str, kind: str, now: float) -> Iterator[IndexedEntry | OrphanBlobs]:
    files: dict[str, os.stat_result] = {}
    blobs: dict[str, list[tuple[str, int]]] = {}
    for item in _list_folder(folder):
        name = item.name
        try:
            if is_digest(name):
                files[name] = item.stat(follow_symlinks=False)
            elif name.endswith(".blob") and is_digest(name[:64]):
                n_bytes = item.stat(follow_symlinks=False).st_size
                blobs.setdefault(name[:64], []).append((name, n_bytes))
        except OSError:
            continue
    for digest, status in files.items():
        own_blobs = blobs.pop(digest, [])
        n_bytes = status.st_size + sum(blob_bytes for _, blob_bytes in own_blobs)
        names = tuple(name for name, _ in own_blobs)
        yield IndexedEntry(kind, digest, folder, n_bytes, min(status.st_mtime, now), names)
    for digest, orphans in blobs.items():
        yield OrphanBlobs(digest, tuple(Path(folder, name) for name, _ in orphans))


def _list_folder(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            return list(items)
    except OSError:
        return []
