"""Locks of keys whose entries are being made: one maker per key on each host.

A lock saves work and decides nothing else. Entries move into the store whole, so that two makers of
one key, on hosts that do not see each other's locks, only cost double work.
"""

import contextlib
import errno
from pathlib import Path

from filelock import FileLock, Timeout

from tuner.interrupts import waiting

_POLL_INTERVAL_SECS = 0.05
# Errors of file systems that have no locks.
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class KeyLock:
    """A lock of one key, which the kernel releases when the process ends.

    Any thread may release it, and a forked child does not inherit it. A lock that is not referenced
    any more is released. On a file system without locks, acquiring succeeds and excludes nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = FileLock(path, thread_local=False, fallback_to_soft=False)

    def try_acquire(self) -> bool:
        """Acquire the lock, or return False at once if another process or thread holds it.

        Raises:
            OSError: If the lock file cannot be written.
        """
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            self._remove_file()
        return True

    def wait(self) -> None:
        """Wait until the holder releases the lock or ends; the user may interrupt the wait."""
        with contextlib.suppress(OSError), waiting():
            self._lock.acquire(poll_interval=_POLL_INTERVAL_SECS)
            self.release()

    def release(self, *, keep_file: bool = False) -> None:
        """Release the lock, and remove its file; does nothing if the lock is not held."""
        if self._lock.is_locked:
            # Removed while it is locked: a process that has it open notices, and makes another.
            if not keep_file:
                self._remove_file()
            self._lock.release()

    def _remove_file(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
