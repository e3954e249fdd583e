"""Distinction between failures of a candidate and failures of a full disk."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.engines.base import RunResult
from tuner.errors import DiskFull

_FULL = (errno.ENOSPC, errno.EDQUOT)
# With less room than this, any failure may be the disk's, whatever a compiler says of it.
_MIN_FREE_BYTES = 1 << 20


@contextmanager
def raising_disk_full() -> Iterator[None]:
    """Raise DiskFull in place of an error of the system inside that means a full disk.

    Raises:
        DiskFull: If the disk or the quota is full.
    """
    try:
        yield
    except OSError as error:
        raise_if_full(error)
        raise


def raise_if_full(error: Exception) -> None:
    """Raise DiskFull if an error of the system means a full disk.

    Raises:
        DiskFull: If the disk or the quota is full.
    """
    if isinstance(error, OSError) and error.errno in _FULL:
        raise _disk_full(error.errno) from error


def check_free_space(result: RunResult, folder: Path) -> RunResult:
    """Return the result of a candidate, unless it failed because the disk is full.

    Args:
        result: Result of a build or a run.
        folder: Directory of its artifacts.

    Raises:
        DiskFull: If the error text names a full disk, or the candidate failed and almost no room
            is left.
    """
    if result.error_kind is None:
        return result
    for number in _FULL:
        if os.strerror(number) in result.error_text:
            raise _disk_full(number)
    if shutil.disk_usage(folder).free < _MIN_FREE_BYTES:
        raise _disk_full(errno.ENOSPC)
    return result


def _disk_full(number: int) -> DiskFull:
    reason = os.strerror(number)
    return DiskFull(f"cannot measure: {reason}; make room for the data directory, then go on")
