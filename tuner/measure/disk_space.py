"""Room on a disk: what fails for want of it says so, and is nobody's fault but the disk's."""

import errno
import os
import shutil
from contextlib import AbstractContextManager
from pathlib import Path

from tuner.engines.base import RunResult
from tuner.errors import DiskFull

_FULL = (errno.ENOSPC, errno.EDQUOT)
# With less than that a failure may be the disk's, whatever a compiler says of it.
_LEAST_BYTES = 1 << 20


class _NeedingRoom(AbstractContextManager[None]):
    """Made once: every build and run goes through it, and a generator would take longer."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError) and is_full(error):
            raise _full(error.errno or errno.ENOSPC) from error


_NEEDING_ROOM = _NeedingRoom()


def needing_room() -> AbstractContextManager[None]:
    """Say in words of ours that a disk is full.

    Raises:
        DiskFull: Inside, in place of the error of the system.
    """
    return _NEEDING_ROOM


def is_full(error: OSError) -> bool:
    """Whether the system says that there is no room."""
    return error.errno in _FULL


def check_blame(result: RunResult, folder: Path) -> RunResult:
    """Return the result of a candidate whose artifacts are in a folder, if it is its own.

    Raises:
        DiskFull: If it failed for want of room.
    """
    if result.error_kind is None:
        return result
    for number in _FULL:
        if os.strerror(number) in result.error_text:
            raise _full(number)
    if shutil.disk_usage(folder).free < _LEAST_BYTES:
        raise _full(errno.ENOSPC)
    return result


def _full(number: int) -> DiskFull:
    reason = os.strerror(number)
    return DiskFull(f"cannot measure: {reason}; make room for the data directory, then go on")
