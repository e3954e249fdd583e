"""Arenas of the C library's allocator, from which the threads of a process take memory."""

import ctypes
import os
from contextlib import suppress

# From malloc.h of the GNU C library.
_M_ARENA_MAX = -8
_N_ARENAS = 2


def limit_arenas() -> None:
    """Let the threads of this process share two arenas, so that it does not grow for long.

    By default the GNU C library has eight for each core. What one thread frees there, others do
    not get, so that each grows to what a busy moment needed. ``MALLOC_ARENA_MAX`` has priority;
    other C libraries have no arenas.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _N_ARENAS)
