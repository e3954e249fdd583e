"""What a worker process is: how it starts, where it prints, when it dies, what it calls."""

import ctypes
import errno
import importlib
import os
import pickle
import resource
import signal
import traceback
from typing import Any

from tuner.errors import OutOfMemory, TunerError, WorkError, last_line

_PR_SET_PDEATHSIG = 1
_MEMORY_WORDS = ("std::bad_alloc", "Cannot allocate memory", "can't start new thread")


def set_up(log: str, environ: dict[str, str], parent: int, max_bytes: int | None = None) -> None:
    """Prepare a process that was just started, before it imports anything of an engine."""
    if max_bytes is not None:
        # What is private and writable: files that are only mapped cost nothing.
        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies; without it, kill -9 leaves orphans."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(1)


# Status with which a process leaves that may serve no further call; that of sysexits.h by which
# a failure is temporary.
RETIRED = 75
_retired = False


def retire() -> None:
    """Let this process answer the call that it has, and leave when it is given the next one.

    That call is lost before it began, by no fault of its own: who made it makes it again.
    """
    global _retired  # noqa: PLW0603  it is a state of the process
    _retired = True


def invoke(module: str, function: str, args: tuple[Any, ...]) -> bytes:
    """Call a function; what it raises must mean something where its module is not imported.

    Returns:
        The pickled answer: one that cannot be read would take the whole pool with it.
    """
    if _retired:
        os._exit(RETIRED)
    try:
        return pickle.dumps(getattr(importlib.import_module(module), function)(*args))
    except TunerError:
        raise
    except Exception as error:
        if _lacks_memory(error):
            traceback.print_exc()
            raise OutOfMemory(f"{function} needs more memory than it may have") from None
        if isinstance(error, OSError):
            raise
        traceback.print_exc()
        raise WorkError(
            f"{function} failed: {type(error).__name__}: {last_line(str(error))}"
        ) from None


def _lacks_memory(error: Exception) -> bool:
    """Return whether an error says so; libraries in C++ have words of their own for it."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or any(word in str(error) for word in _MEMORY_WORDS)
