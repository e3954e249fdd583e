"""Kinds of file systems: a shared one cannot hold the locks of a machine."""

import ctypes
import os

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
