"""The inside of a worker process: its set-up, the calls that it serves, and its end."""

import ctypes
import importlib
import os
import pickle
import resource
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tuner.errors import OutOfMemory, TunerError, WorkError, lacks_memory, last_line
from tuner.workers import messages
from tuner.workers.confinement.sandbox import Sandbox, enter_or_report

# Exit status of a worker that may serve no further call: EX_TEMPFAIL of sysexits.h.
RETIRED = 75
#: What a worker is called in lists of processes.
NAME = "tuner-worker"
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
# The kernel kills workers before all other processes, and so before the coordinator.
_OOM_SCORE_ADJ = 1000
# Variables that name folders of the user.
_USER_FOLDERS = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")

_retired = False


def set_up(max_bytes: int | None = None) -> None:
    """Prepare a new process before it serves calls.

    Args:
        max_bytes: Limit of its memory for data; None for no limit.
    """
    if max_bytes is not None:
        # Limit private writable memory; files that are only mapped do not count.
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            max_bytes = min(max_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))
    # Linux chooses this process and its children when memory runs out.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(f"{_OOM_SCORE_ADJ}\n")
    ignore_signals()


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM, which a terminal or a manager sends to all processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def name_process(name: str) -> None:
    """Set what this process is called in lists of processes, at most 15 characters."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


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


def serve(descriptor: int, sandbox: str, cores: Iterable[int], parent: int) -> None:
    """Serve the calls that arrive on a connection, until its other end is closed.

    Args:
        descriptor: File descriptor of the connection.
        sandbox: Limits on files and network, as :meth:`Sandbox.as_text`; empty for none.
        cores: Cores that it may use; empty for those of its parent.
        parent: Id of the process whose death ends this one.

    Raises:
        OSError, RuntimeError: If the sandbox is required and cannot be entered.
    """
    name_process(NAME)
    die_with_parent(parent)
    os.set_inheritable(descriptor, False)
    if cores:
        with suppress(OSError):
            os.sched_setaffinity(0, cores)
    if sandbox:
        scratch = tempfile.gettempdir()
        # Some packages fail unless they can write there, OpenVINO among them.
        os.environ["HOME"] = scratch
        for name in _USER_FOLDERS:
            os.environ.pop(name, None)
        enter_or_report(Sandbox.from_text(sandbox), scratch)
    with socket.socket(fileno=descriptor) as stream, suppress(OSError):
        while (request := messages.receive(stream, sys.maxsize)) is not None:
            messages.send(stream, _answer(request))
    os._exit(0)


def _answer(request: bytes) -> bytes:
    """Call the function of a request, and return its answer.

    Exceptions that are not the tuner's or the system's become WorkError.
    """
    if _retired:
        os._exit(RETIRED)
    function = "a call"
    try:
        module, function, args, max_bytes = pickle.loads(request)
        answer = messages.encode(getattr(importlib.import_module(module), function)(*args))
        if len(answer) > max_bytes:
            raise WorkError(
                f"{function} returned {len(answer)} bytes, where {max_bytes} are allowed"
            )
        return answer
    except Exception as error:
        return messages.encode_error(_known(error, function))


def _known(error: Exception, function: str) -> TunerError | OSError:
    """Return the error that the caller gets for an exception."""
    if isinstance(error, TunerError):
        return error
    if lacks_memory(error):
        traceback.print_exc()
        return OutOfMemory(f"{function} needs more memory than it may have")
    if isinstance(error, OSError):
        return error
    traceback.print_exc()
    return WorkError(f"{function} failed: {type(error).__name__}: {last_line(str(error))}")
