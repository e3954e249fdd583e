"""Garbage collection of the local tier: entries beyond a limit, and files of killed processes."""

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
from tuner.build_cache.index import IndexedEntry, OrphanBlobs
from tuner.build_cache.local import LocalTier
from tuner.build_cache.locks import KeyLock
from tuner.files.process_tags import is_left

Progress = Callable[[int], None]


@dataclass
class Collected:
    """Counts of what was removed, and of what is left.

    Attributes:
        n_bytes: Their size on disk.
        n_held: Entries that were to be removed, but are in use or cannot be removed.
        n_strays: Files of killed processes removed.
        n_left: Entries left.
        n_left_bytes: Their size on disk.
    """

    n_entries: int = 0
    n_bytes: int = 0
    n_held: int = 0
    n_strays: int = 0
    n_left: int = 0
    n_left_bytes: int = 0

    def count(self, entry: IndexedEntry) -> None:
        """Count an entry as removed."""
        self.n_entries += 1
        self.n_bytes += entry.n_bytes
        self.n_left -= 1
        self.n_left_bytes -= entry.n_bytes


def collect(
    local: LocalTier,
    *,
    max_bytes: int | None = None,
    unused_for_secs: float | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Collected:
    """Remove entries beyond a limit, least recently used first, and files of killed processes.

    Nothing that a process holds open or is writing is removed.

    Args:
        local: The store.
        max_bytes: Largest size on disk; None for no limit.
        unused_for_secs: Longest time without a use; None for no limit.
        dry_run: Only count what would be removed.
        progress: Called with the number of entries removed so far.
    """
    items = list(index.scan(local))
    entries = sorted(
        (item for item in items if isinstance(item, IndexedEntry)), key=lambda entry: entry.used
    )
    oldest = -math.inf if unused_for_secs is None else time.time() - unused_for_secs
    limit = math.inf if max_bytes is None else max_bytes
    n_bytes = sum(entry.n_bytes for entry in entries)
    collected = Collected(n_left=len(entries), n_left_bytes=n_bytes)
    while entries and (excess := _excess(entries, collected.n_left_bytes, oldest, limit)):
        entries = entries[len(excess) :]
        # Folder by folder: a disk takes many times as long for the same in any other order.
        for entry in sorted(excess, key=lambda entry: (entry.folder, entry.digest)):
            if dry_run or remove(local, entry):
                collected.count(entry)
            else:
                collected.n_held += 1
            if progress is not None:
                progress(collected.n_entries)
    orphans = [item for item in items if isinstance(item, OrphanBlobs)]
    # Remove what killed processes left; return the number of files.
    n_swept = sum(
        len(orphan.blobs) if dry_run else _sweep_blobs(local, orphan) for orphan in orphans
    )
    for path in _temporary_files(local):
        n_swept += 1
        if not dry_run:
            with contextlib.suppress(OSError):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
    collected.n_strays = n_swept + _sweep_locks(local, dry_run=dry_run)
    return collected


def _excess(
    entries: Sequence[IndexedEntry], n_bytes: int, oldest: float, limit: float
) -> list[IndexedEntry]:
    """Return the first of entries, sorted by use, that are too old or exceed the limit."""
    excess = []
    for entry in entries:
        if entry.used >= oldest and n_bytes <= limit:
            break
        excess.append(entry)
        n_bytes -= entry.n_bytes
    return excess


def remove(local: LocalTier, entry: IndexedEntry) -> bool:
    """Remove an entry; False if a process holds it open, or it cannot be removed."""
    try:
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        return _exclude_readers(descriptor) and _unlink(local, entry, os.fstat(descriptor))
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _exclude_readers(descriptor: int) -> bool:
    """Keep readers away from an open entry; False if there are some."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A file system without locks: readers keep the files that they have open.
        return True
    return True


def _unlink(local: LocalTier, entry: IndexedEntry, status: os.stat_result) -> bool:
    if entry.blob_names or stat.S_ISDIR(status.st_mode):
        return local.drop(entry.kind, entry.digest, status)
    if not os.path.samestat(entry.path.lstat(), status):
        return False
    entry.path.unlink()
    return True


def _sweep_blobs(local: LocalTier, orphan: OrphanBlobs) -> int:
    """Remove blobs under the lock of their key: its entry may be about to appear."""
    lock = local.lock_of(orphan.digest)
    try:
        if not lock.try_acquire() or orphan.blobs[0].with_name(orphan.digest).exists():
            return 0
        for blob in orphan.blobs:
            blob.unlink(missing_ok=True)
    except OSError:
        return 0
    finally:
        lock.release()
    return len(orphan.blobs)


def _sweep_locks(local: LocalTier, *, dry_run: bool) -> int:
    """Remove lock files that no process holds; a process that was killed leaves its own."""
    n_swept = 0
    for path in local.locks.glob("*.lock"):
        lock = KeyLock(path)
        with contextlib.suppress(OSError):
            if lock.try_acquire():
                n_swept += 1
                lock.release(keep_file=dry_run)
    return n_swept


def _temporary_files(local: LocalTier) -> Iterator[Path]:
    """List temporary files of processes that have ended, or may have and are old."""
    try:
        paths = list(local.scratch.iterdir())
    except OSError:
        return
    yield from filter(is_left, paths)
