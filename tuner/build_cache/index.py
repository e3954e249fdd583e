"""What lies in the local tier, seen from its directories alone: no entry is opened for it."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tuner.build_cache import headers
from tuner.build_cache.headers import Damaged, Header, Newer
from tuner.build_cache.keys import is_digest, is_kind
from tuner.build_cache.local import LocalTier

_HEAD_BYTES = 1 << 16


class Spot(NamedTuple):
    """An entry as its directory shows it; there may be very many.

    Attributes:
        kind: Its kind.
        digest: Of its key.
        folder: Where its file is.
        n_bytes: On disk, with what lies beside it.
        used: When it was used last, seconds since 1970; never later than now.
        blob_names: What lies beside it.
    """

    kind: str
    digest: str
    folder: str
    n_bytes: int
    used: float
    blob_names: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Its file."""
        return Path(self.folder, self.digest)

    @property
    def blobs(self) -> tuple[Path, ...]:
        """The files beside it."""
        return tuple(Path(self.folder, name) for name in self.blob_names)


@dataclass(frozen=True)
class Stray:
    """Blobs without an entry: what a process left that was killed, or an entry removed half."""

    digest: str
    blobs: tuple[Path, ...]


def kinds(local: LocalTier) -> list[str]:
    """Return the kinds of which there may be entries, sorted."""
    return sorted(entry.name for entry in _listed(local.entries) if is_kind(entry.name))


def spots(local: LocalTier, kind: str | None = None) -> Iterator[Spot]:
    """List entries in no order; what vanishes meanwhile may be missing."""
    for found in scan(local, kind):
        if isinstance(found, Spot):
            yield found


def scan(local: LocalTier, kind: str | None = None) -> Iterator[Spot | Stray]:
    """List entries, and blobs that have none."""
    now = time.time()
    for each in kinds(local) if kind is None else [kind]:
        for folder in _listed(local.entries / each):
            yield from _scan_folder(folder.path, each, now)


def header_of(spot: Spot) -> Header | None:
    """Read what an entry says of itself; None if it cannot be read or is damaged."""
    try:
        with spot.path.open("rb") as stream:
            data = stream.read(_HEAD_BYTES)
            n_header, _ = headers.read_prefix(data)
            missing = headers.PREFIX.size + n_header - len(data)
            if missing > 0:
                data += stream.read(missing)
        return headers.read_header(data)[0]
    except (OSError, Damaged, Newer):
        return None


def _scan_folder(folder: str, kind: str, now: float) -> Iterator[Spot | Stray]:
    entries: dict[str, os.stat_result] = {}
    blobs: dict[str, list[tuple[str, int]]] = {}
    for found in _listed(folder):
        name = found.name
        try:
            if is_digest(name):
                entries[name] = found.stat(follow_symlinks=False)
            elif name.endswith(".blob") and is_digest(name[:64]):
                n_bytes = found.stat(follow_symlinks=False).st_size
                blobs.setdefault(name[:64], []).append((name, n_bytes))
        except OSError:
            continue
    for digest, status in entries.items():
        n_bytes, names = status.st_size, tuple[str, ...]()
        if digest in blobs:
            beside = blobs.pop(digest)
            n_bytes += sum(each for _, each in beside)
            names = tuple(name for name, _ in beside)
        yield Spot(kind, digest, folder, n_bytes, min(status.st_mtime, now), names)
    for digest, beside in blobs.items():
        yield Stray(digest, tuple(Path(folder, name) for name, _ in beside))


def _listed(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
