"""Folders that live as long as their process, however that ends."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


def process_folder() -> Path:
    """Make a folder that lasts until this process ends, and remove those of ended processes.

    Raises:
        PermissionError: If the parent folder belongs to another user.
    """
    parent = Path(tempfile.gettempdir()) / f"tuner-agents-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    if parent.lstat().st_uid != os.getuid():  # files in it are loaded as code
        raise PermissionError(f"{parent} belongs to another user")
    # Excludes other processes between the creation of a folder and its lock.
    creation = _lock(parent, fcntl.LOCK_EX)
    try:
        for leftover in parent.iterdir():
            with suppress(OSError):
                os.close(_lock(leftover, fcntl.LOCK_EX | fcntl.LOCK_NB))
                shutil.rmtree(leftover)
        folder = Path(tempfile.mkdtemp(dir=parent))
        _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return folder
    finally:
        os.close(creation)


def _lock(folder: Path, operation: int) -> int:
    """Lock a folder until the descriptor is closed or the process ends.

    Raises:
        BlockingIOError: If another process holds the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, operation)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
