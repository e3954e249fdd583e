"""Forked processes: the threads that kernels run on do not exist in a child.

TVM cannot start its thread pool again in a process that was forked from one that used it: the
first parallel kernel would wait for ever. A child may compile if its parent had not.
"""

import os
import weakref
from typing import Protocol

from tuner.errors import WorkError


class LibraryHolder(Protocol):
    """An object that holds libraries."""

    def forget(self) -> None:
        """Drop every library, without waiting for anything."""


_holders: weakref.WeakSet[LibraryHolder] = weakref.WeakSet()
_state = {"loaded": False, "forked": False}


def register_holder(holder: LibraryHolder) -> None:
    """Have a holder forget its libraries in children that cannot use them."""
    _holders.add(holder)


def note_library() -> None:
    """Note that this process is about to use a library.

    Raises:
        WorkError: If its parent used one before it forked this process.
    """
    if _state["forked"]:
        raise WorkError(
            "this process was forked after tuner.jit had compiled, and the threads of the kernels "
            "are not in it; start processes by spawn or forkserver, or fork before the first call"
        )
    _state["loaded"] = True


def _after_fork() -> None:
    if _state["loaded"]:
        _state["forked"] = True
        for holder in list(_holders):
            holder.forget()


os.register_at_fork(after_in_child=_after_fork)
