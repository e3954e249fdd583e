"""Drop the privileges of root, so that file permissions hold for tests."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION = 0x20080522
# CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
_MASK = (1 << 1) | (1 << 2) | (1 << 3)


@contextmanager
def without_privilege() -> Iterator[None]:
    """Have this thread obey file permissions, even if root runs the tests."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    # Effective, permitted, inheritable; twice, for 64 bits.
    held = (ctypes.c_uint32 * 6)()
    _check(libc.capget(header, held))
    fewer = (ctypes.c_uint32 * 6)(*held)
    fewer[0] &= ~_MASK & 0xFFFFFFFF
    _check(libc.capset(header, fewer))
    try:
        yield
    finally:
        _check(libc.capset(header, held))


def _check(status: int) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), "the capabilities of this thread cannot be changed")
