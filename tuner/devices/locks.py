"""Locks that let one process at a time measure on a device of this machine.

A lock is a file that the kernel locks for a process, so that it ends with the process, however
that ends. It lies on a file system of this machine: on one that machines share, a lock of one would
keep the others from their own devices, and might outlive its holder.

The CPU's is one for the data directory: cores may be divided among users, containers and data
directories, and then each measures on its own. Coordinators hold the cores that they may use as
well. A GPU is one device to all of them, and its lock is one for the whole machine.
"""

import ctypes
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tuner.errors import DeviceBusy, RequestError

# Not the folder for temporary files of a user or a job, which may be one of its own.
GPU_LOCKS = Path("/tmp/subgraph-tuner-gpus")
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW

# The first field of struct statfs, by statfs(2) and linux/magic.h. FUSE and 9P are left out: a
# container's own root may be either of them.
_SHARED = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB",
    0x5346414F: "AFS",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
}
_MAGIC_BITS = 32
# More than the structure has on any architecture.
_STATFS_BYTES = 512
_LIBC = ctypes.CDLL(None, use_errno=True)


def shared_kind(descriptor: int) -> str:
    """Return the kind of the file system of an open file if machines may share it, else nothing.

    Raises:
        OSError: If the system does not tell.
    """
    return _SHARED.get(_magic(descriptor), "")


def _magic(descriptor: int) -> int:
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _LIBC.fstatfs(descriptor, buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(ctypes.c_long.from_buffer(buffer).value) & ((1 << _MAGIC_BITS) - 1)


def runtime_dir() -> Path:
    """Return the folder of this user's locks on this machine; ``TUNER_RUNTIME_DIR`` replaces it.

    A login session's folder would not do: services of the same user have none.
    """
    return Path(
        os.environ.get("TUNER_RUNTIME_DIR") or f"/tmp/subgraph-tuner-{os.geteuid()}"
    ).absolute()


def check_runtime_dir() -> None:
    """Check that the folder of this user's locks can be used.

    Raises:
        RequestError: If it cannot.
    """
    try:
        os.close(_open_private(runtime_dir()))
    except OSError as error:
        raise RequestError(f"locks cannot be used: {error}") from error


@contextmanager
def device_lock(data_dir: Path) -> Iterator[None]:
    """Hold the CPU for measuring inside; two runs at once would slow each other down.

    Raises:
        DeviceBusy: If another process of this machine with this data directory holds it, or the
            lock cannot be used.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    status = data_dir.stat()
    with _user_lock(f"data-{status.st_dev}-{status.st_ino}", "this machine"):
        yield


@contextmanager
def cores_lock() -> Iterator[None]:
    """Hold every core that this process may use against other coordinators of this machine.

    Raises:
        DeviceBusy: If another one holds one of them, or a lock cannot be used.
    """
    with ExitStack() as stack:
        for core in sorted(os.sched_getaffinity(0)):
            stack.enter_context(_user_lock(f"core-{core}", f"core {core} of this machine"))
        yield


@contextmanager
def gpu_lock(uuid: str) -> Iterator[None]:
    """Hold a GPU of this machine for measuring inside, across users and data directories.

    Raises:
        DeviceBusy: If another process holds it, or the lock cannot be used.
    """
    with ExitStack() as stack:
        try:
            folder = _open_folder(GPU_LOCKS)
            stack.callback(os.close, folder)
            # Linux refuses O_CREAT for an existing file to all but its owner.
            path = GPU_LOCKS / uuid
            try:
                descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                descriptor = os.open(path, _FLAGS)
            descriptor = _shared(descriptor, 0o666)
        except OSError as error:
            raise DeviceBusy(f"the lock of {uuid} cannot be used: {error}") from error
        # A sweep of old files skips a folder that is locked (tmpfiles.d(5)).
        fcntl.flock(folder, fcntl.LOCK_SH)
        stack.enter_context(_held(descriptor, uuid))
        yield


@contextmanager
def _user_lock(name: str, device: str) -> Iterator[None]:
    """Hold a lock of this user on this machine."""
    with ExitStack() as stack:
        try:
            folder = _open_private(runtime_dir())
            stack.callback(os.close, folder)
            descriptor = os.open(name, _FLAGS | os.O_CREAT, 0o600, dir_fd=folder)
        except OSError as error:
            raise DeviceBusy(f"the lock of {device} cannot be used: {error}") from error
        # A sweep of old files skips a folder that is locked (tmpfiles.d(5)).
        fcntl.flock(folder, fcntl.LOCK_SH)
        stack.enter_context(_held(descriptor, device))
        yield


@contextmanager
def _held(descriptor: int, device: str) -> Iterator[None]:
    """Hold the lock of an open file, write the holder's process id to it, and close it after."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise DeviceBusy(
            f"process {holder} is measuring on {device}; wait for it to end"
        ) from error
    try:
        with suppress(OSError):  # a full disk does not prevent measuring
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open_private(folder: Path) -> int:
    """Open a folder of this user alone.

    Raises:
        OSError: If it cannot be opened, is another user's, who could remove files in it, or is on
            a file system that machines may share.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(f"{folder} belongs to another user; set TUNER_RUNTIME_DIR")
    if kind := shared_kind(descriptor):
        os.close(descriptor)
        raise PermissionError(
            f"{folder} is on {kind}, which other machines may share; set TUNER_RUNTIME_DIR to a "
            "folder on a disk of this machine"
        )
    return descriptor


def _open_folder(folder: Path) -> int:
    """Open a folder in which every user may have files, and remove only their own."""
    with suppress(FileExistsError):
        folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    return _shared(descriptor, 0o1777)


def _shared(descriptor: int, mode: int) -> int:
    """Give others access to a file of this user.

    The mode is set on every open, because the process that created it may have been killed.
    """
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(descriptor, mode)
    return descriptor
