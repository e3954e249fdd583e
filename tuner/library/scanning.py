"""What lies in the local tier, seen from its directories alone: no entry is opened for it."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuner.library import packing
from tuner.library.keys import is_digest, is_kind
from tuner.library.local import LocalTier
from tuner.library.packing import Damaged, Header, Newer

_HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class Spot:
    """An entry as its directory shows it.

    Attributes:
        kind: Its kind.
        digest: Of its key.
        path: Its file.
        n_bytes: On disk, with what lies beside it.
        used: When it was used last, seconds since 1970; never later than now.
        blobs: What lies beside it.
    """

    kind: str
    digest: str
    path: Path
    n_bytes: int
    used: float
    blobs: tuple[Path, ...] = ()


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
            yield from _scan_folder(Path(folder.path), each, now)


def header_of(spot: Spot) -> Header | None:
    """Read what an entry says of itself; None if it cannot be read or is damaged."""
    try:
        with spot.path.open("rb") as stream:
            data = stream.read(_HEAD_BYTES)
            n_header, _ = packing.read_prefix(data)
            missing = packing.PREFIX.size + n_header - len(data)
            if missing > 0:
                data += stream.read(missing)
        return packing.read_header(data)[0]
    except (OSError, Damaged, Newer):
        return None


def _scan_folder(folder: Path, kind: str, now: float) -> Iterator[Spot | Stray]:
    entries: dict[str, os.stat_result] = {}
    blobs: dict[str, list[tuple[Path, int]]] = {}
    for found in _listed(folder):
        try:
            status = found.stat(follow_symlinks=False)
        except OSError:
            continue
        if is_digest(found.name):
            entries[found.name] = status
        elif found.name.endswith(".blob") and is_digest(found.name[:64]):
            blobs.setdefault(found.name[:64], []).append((Path(found.path), status.st_size))
    for digest, status in entries.items():
        beside = blobs.pop(digest, [])
        yield Spot(
            kind=kind,
            digest=digest,
            path=folder / digest,
            n_bytes=status.st_size + sum(n_bytes for _, n_bytes in beside),
            used=min(status.st_mtime, now),
            blobs=tuple(path for path, _ in beside),
        )
    for digest, beside in blobs.items():
        yield Stray(digest, tuple(path for path, _ in beside))


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
