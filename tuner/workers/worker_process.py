"""The inside of a worker process: its set-up, the calls that it serves, and its end."""

import ctypes
import importlib
import os
import pickle
import resource
import signal
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from tuner.errors import OutOfMemory, TunerError, WorkError, lacks_memory, last_line

# Exit status of a worker that may serve no further call: EX_TEMPFAIL of sysexits.h.
RETIRED = 75
_PR_SET_PDEATHSIG = 1
# The kernel kills workers before all other processes, and so before the coordinator.
_OOM_SCORE_ADJ = 1000

_retired = False


def set_up(environ: dict[str, str], parent: int, max_bytes: int | None = None) -> None:
    """Prepare a new process before it imports anything of an engine.

    Args:
        environ: Environment variables to set.
        parent: Id of the process whose death ends this one.
        max_bytes: Limit of its memory for data; None for no limit.
    """
    if max_bytes is not None:
        _limit_data(max_bytes)
    _die_first()
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)


def _limit_data(n_bytes: int) -> None:
    """Limit private writable memory; files that are only mapped do not count."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        n_bytes = min(n_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, n_bytes))


def _die_first() -> None:
    """Have Linux choose this process, and those that it starts, when memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(f"{_OOM_SCORE_ADJ}\n")


def die_with_parent(parent: int) -> None:
    """Have Linux kill this process when its parent dies; kill -9 would leave orphans otherwise."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(1)


def retire() -> None:
    """Let this process answer its current call, and exit when it receives the next one.

    That next call is lost before it began, through no fault of its own: its caller repeats it.
    """
    global _retired  # noqa: PLW0603  it is a state of the process
    _retired = True


def invoke(module: str, function: str, args: tuple[Any, ...]) -> bytes:
    """Call ``module.function(*args)``, and translate exceptions that only its module defines.

    Returns:
        The pickled result: an unreadable one would break the whole pool.
    """
    if _retired:
        os._exit(RETIRED)
    try:
        return pickle.dumps(getattr(importlib.import_module(module), function)(*args))
    except TunerError:
        raise
    except Exception as error:
        if lacks_memory(error):
            traceback.print_exc()
            raise OutOfMemory(f"{function} needs more memory than it may have") from None
        if isinstance(error, OSError):
            raise
        traceback.print_exc()
        raise WorkError(
            f"{function} failed: {type(error).__name__}: {last_line(str(error))}"
        ) from None
