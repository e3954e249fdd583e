"""Making room in the local tier: entries that are too much, and what killed processes left."""

import contextlib
import fcntl
import math
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.build_cache import index
from tuner.build_cache.index import Spot, Stray
from tuner.build_cache.keys import is_digest
from tuner.build_cache.local import LocalTier
from tuner.build_cache.process_identity import owner_of_tag

# What a process on another machine writes is left alone for so long.
_FOREIGN_SECS = 24 * 3600.0

Progress = Callable[[int], None]


@dataclass
class Collected:
    """What was removed, and what was not.

    Attributes:
        n_entries: Entries removed.
        n_bytes: They took on disk.
        n_held: Entries that should have gone, had no process held them.
        n_strays: Files removed that killed processes had left.
        n_left: Entries that are left.
        n_left_bytes: They take on disk.
    """

    n_entries: int = 0
    n_bytes: int = 0
    n_held: int = 0
    n_strays: int = 0
    n_left: int = 0
    n_left_bytes: int = 0

    def count(self, spot: Spot) -> None:
        """Count an entry as removed."""
        self.n_entries += 1
        self.n_bytes += spot.n_bytes
        self.n_left -= 1
        self.n_left_bytes -= spot.n_bytes


def collect(
    local: LocalTier,
    *,
    max_bytes: int | None = None,
    unused_for_secs: float | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Collected:
    """Remove what is too much, those unused for longest first, and what no one left whole.

    Nothing that a process holds open is removed, nor what one writes.

    Args:
        local: The store.
        max_bytes: It may take so much; None for no limit.
        unused_for_secs: Entries that nobody used for so long go; None for no limit.
        dry_run: Only say what would go.
        progress: Told how many entries went so far.
    """
    found = list(index.scan(local))
    spots = sorted((f for f in found if isinstance(f, Spot)), key=lambda spot: spot.used)
    oldest = -math.inf if unused_for_secs is None else time.time() - unused_for_secs
    limit = math.inf if max_bytes is None else max_bytes
    collected = Collected(n_left=len(spots), n_left_bytes=sum(spot.n_bytes for spot in spots))
    while spots and (chosen := _chosen(spots, collected.n_left_bytes, oldest, limit)):
        spots = spots[len(chosen) :]
        # Folder by folder: a disk takes many times as long for the same in any other order.
        for spot in sorted(chosen, key=lambda each: (each.folder, each.digest)):
            if dry_run or _remove(local, spot):
                collected.count(spot)
            else:
                collected.n_held += 1
            if progress is not None:
                progress(collected.n_entries)
    strays = [f for f in found if isinstance(f, Stray)]
    collected.n_strays = _sweep(local, strays, dry_run=dry_run)
    return collected


def _chosen(spots: Sequence[Spot], n_bytes: int, oldest: float, limit: float) -> list[Spot]:
    """Return the first of entries, sorted by use, that are too old or too much."""
    chosen = []
    for spot in spots:
        if spot.used >= oldest and n_bytes <= limit:
            break
        chosen.append(spot)
        n_bytes -= spot.n_bytes
    return chosen


def remove_old_libraries(data_dir: Path, *, dry_run: bool) -> int:
    """Remove libraries as earlier versions kept them, which nothing reads; return their bytes."""
    n_bytes = 0
    # Only what has a key for its name: a user may have built into that folder, too.
    for folder in (data_dir / "libraries").glob("*"):
        if not is_digest(folder.name):
            continue
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                n_bytes += path.lstat().st_size
        if not dry_run:
            shutil.rmtree(folder, ignore_errors=True)
    return n_bytes


def _remove(local: LocalTier, spot: Spot) -> bool:
    """Remove an entry that nobody holds; False if somebody does, or it cannot be removed."""
    try:
        descriptor = os.open(spot.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        return _is_free(descriptor) and _removed(local, spot, os.fstat(descriptor))
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    """Keep readers away from an open entry; False if there are some."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # There are no locks here; who has an entry open keeps what it has open.
        return True
    return True


def _removed(local: LocalTier, spot: Spot, found: os.stat_result) -> bool:
    if spot.blob_names or stat.S_ISDIR(found.st_mode):
        return local.drop(spot.kind, spot.digest, found)
    if not os.path.samestat(spot.path.lstat(), found):
        return False
    spot.path.unlink()
    return True


def _sweep(local: LocalTier, strays: list[Stray], *, dry_run: bool) -> int:
    """Remove what processes left that were killed; return how many files."""
    n_swept = 0
    for stray in strays:
        n_swept += len(stray.blobs) if dry_run else _sweep_blobs(local, stray)
    for path in (*_left_over(local), *_dead_locks(local)):
        n_swept += 1
        if not dry_run:
            _discard(path)
    return n_swept


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sweep_blobs(local: LocalTier, stray: Stray) -> int:
    """Remove blobs under the lock of their key: its entry may be about to appear."""
    try:
        lock = local.locks.take(stray.digest)
    except OSError:
        return 0
    if lock is None:
        return 0
    try:
        if stray.blobs[0].with_name(stray.digest).exists():
            return 0
        for blob in stray.blobs:
            blob.unlink(missing_ok=True)
    except OSError:
        return 0
    finally:
        lock.release()
    return len(stray.blobs)


def _left_over(local: LocalTier) -> Iterator[Path]:
    """List temporary files of processes that are gone, or that nobody can ask."""
    try:
        found = list(local.scratch.iterdir())
    except OSError:
        return
    for path in found:
        owner = owner_of_tag(".".join(path.name.split(".")[:4]))
        is_known = owner is not None and owner.is_known_here
        if owner.is_gone if owner is not None and is_known else _is_old(path):
            yield path


def _is_old(path: Path) -> bool:
    try:
        return path.lstat().st_mtime < time.time() - _FOREIGN_SECS
    except OSError:
        return False


def _dead_locks(local: LocalTier) -> Iterator[Path]:
    """List locks whose owners are gone, for nobody may ask for their keys again."""
    for path in local.scratch.with_name(".locks").glob("*.lock"):
        if not local.locks.is_held(path.stem) or _is_old(path):
            yield path
