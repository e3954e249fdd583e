"""A folder that goes with its process, however that ends."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


def folder_of_process() -> Path:
    """Make a folder for as long as this process lives; those of ended processes go now.

    Raises:
        PermissionError: If another user has made a folder where ours are to be.
    """
    parent = Path(tempfile.gettempdir()) / f"tuner-agents-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    if parent.lstat().st_uid != os.getuid():  # what is laid there is loaded as code
        raise PermissionError(f"{parent} belongs to another user")
    # Nobody looks between the making of a folder and the locking.
    making = _lock(parent, fcntl.LOCK_EX)
    try:
        for left in parent.iterdir():
            with suppress(OSError):
                os.close(_lock(left, fcntl.LOCK_EX | fcntl.LOCK_NB))
                shutil.rmtree(left)
        folder = Path(tempfile.mkdtemp(dir=parent))
        _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return folder
    finally:
        os.close(making)


def _lock(folder: Path, how: int) -> int:
    """Lock a folder until the descriptor is closed or the process ends.

    Raises:
        BlockingIOError: If another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
