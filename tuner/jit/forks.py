"""Forks: the threads that kernels run on do not live on in a child.

TVM's pool of threads cannot be started anew in a process that was forked from one that used it:
the first parallel kernel would wait for ever. A child may compile if its parent had not.
"""

import os
import weakref
from typing import Protocol

from tuner.errors import WorkError


class Forgetful(Protocol):
    """What holds libraries."""

    def forget(self) -> None:
        """Let go of every library, without waiting for anything."""


_holders: weakref.WeakSet[Forgetful] = weakref.WeakSet()
_state = {"loaded": False, "forked": False}


def watch(holder: Forgetful) -> None:
    """Have a holder forget its libraries in children."""
    _holders.add(holder)


def note_library() -> None:
    """Note that this process is about to use a library.

    Raises:
        WorkError: If a parent did before it forked this process.
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
