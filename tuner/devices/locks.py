"""One process at a time measures on a device of this machine.

A lock is a file that a process holds by the kernel's leave, so that it dies with its process,
however that dies. A CPU's lies in the data directory: its cores may be shared out among users,
containers and data directories, and then each measures on its own. A GPU is one device to all of
them, and its lock is one for the whole machine.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tuner.errors import DeviceBusy

# Not the folder for temporary files of a user or a job, which may be one of its own.
GPU_LOCKS = Path("/tmp/subgraph-tuner-gpus")
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def device_lock(data_dir: Path) -> Iterator[None]:
    """Hold the CPU for measuring; two runs at once would slow each other's candidates.

    Raises:
        DeviceBusy: If another process with this data directory holds it.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(data_dir / "measuring.lock", _FLAGS | os.O_CREAT, 0o666)
    with _held(descriptor, "this machine"):
        yield


@contextmanager
def gpu_lock(uuid: str) -> Iterator[None]:
    """Hold a GPU of this machine for measuring, whichever user or data directory asks.

    Raises:
        DeviceBusy: If another process holds it, or the lock cannot be used.
    """
    with ExitStack() as stack:
        try:
            folder = _open_folder(GPU_LOCKS)
            stack.callback(os.close, folder)
            descriptor = _open_shared(GPU_LOCKS / uuid)
        except OSError as error:
            raise DeviceBusy(f"the lock of {uuid} cannot be used: {error}") from error
        # Whoever sweeps old files leaves a folder alone that somebody has locked (tmpfiles.d(5)).
        fcntl.flock(folder, fcntl.LOCK_SH)
        stack.enter_context(_held(descriptor, uuid))
        yield


@contextmanager
def _held(descriptor: int, device: str) -> Iterator[None]:
    """Hold the lock of an open file, which says who holds it, and close it after."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise DeviceBusy(
            f"process {holder} is measuring on {device}; wait for it to end"
        ) from error
    try:
        with suppress(OSError):  # a full disk keeps nobody from measuring
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open_folder(folder: Path) -> int:
    """Open a folder in which every user may have files, and remove none of others."""
    with suppress(FileExistsError):
        folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    return _shared(descriptor, 0o1777)


def _open_shared(path: Path) -> int:
    """Open a file that every user may write.

    What is there is not opened as a new one: Linux refuses that to others than its owner.
    """
    try:
        descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        descriptor = os.open(path, _FLAGS)
    return _shared(descriptor, 0o666)


def _shared(descriptor: int, mode: int) -> int:
    """Let others at what is ours; whoever made it may have been killed before he did."""
    found = os.fstat(descriptor)
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != mode:
        os.fchmod(descriptor, mode)
    return descriptor
