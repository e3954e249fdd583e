"""Temporary folders of this process and its workers, which are removed however the process ends."""

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

_lock = threading.Lock()
# The folder of each process: a forked child makes its own.
_folders: dict[int, Path] = {}


def process_folder() -> Path:
    """Return a folder that lasts until this process ends; the first call makes it.

    It is removed at exit. Folders of processes that were killed are removed by the first call of
    another process of the user.

    Raises:
        PermissionError: If the parent folder belongs to another user.
    """
    with _lock:
        folder = _folders.get(os.getpid())
        if folder is None or not folder.is_dir():
            folder = _folders[os.getpid()] = _make()
        return folder


def shared_folder() -> Path:
    """Return the part of this process's folder that its workers read and write, too.

    Raises:
        PermissionError: If the parent folder belongs to another user.
    """
    folder = process_folder() / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def worker_folder() -> Path:
    """Make a folder for the temporary files of one worker.

    Raises:
        PermissionError: If the parent folder belongs to another user.
    """
    return Path(tempfile.mkdtemp(prefix="worker-", dir=process_folder()))


def _make() -> Path:
    parent = Path(tempfile.gettempdir()) / f"tuner-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    if parent.lstat().st_uid != os.getuid():  # files in it are loaded as code
        raise PermissionError(f"{parent} belongs to another user")
    # Excludes other processes between the creation of a folder and its lock.
    creation = _flock(parent, fcntl.LOCK_EX)
    try:
        for leftover in parent.iterdir():
            with suppress(OSError):
                os.close(_flock(leftover, fcntl.LOCK_EX | fcntl.LOCK_NB))
                shutil.rmtree(leftover)
        folder = Path(tempfile.mkdtemp(dir=parent))
        _flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return folder
    finally:
        os.close(creation)


def _flock(folder: Path, operation: int) -> int:
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


@atexit.register
def _remove() -> None:
    folder = _folders.get(os.getpid())
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
