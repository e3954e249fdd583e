"""What a worker process is: how it starts, where it prints, when it dies, what it calls."""

import ctypes
import errno
import importlib
import os
import pickle
import resource
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker, spawn
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from tuner.engines.environments import Interpreter
from tuner.errors import OutOfMemory, TunerError, WorkError, last_line

_WORKER_NAME = "tuner-worker"
_PR_SET_PDEATHSIG = 1
_MEMORY_WORDS = ("std::bad_alloc", "Cannot allocate memory", "can't start new thread")


# Finds packages of ours for a Python that has another set of packages, and nothing beside them.
_BOOT = """\
import sys
from importlib.machinery import PathFinder

class Ours:
    @staticmethod
    def find_spec(name, path=None, target=None):
        folder = None if path else {folders!r}.get(name)
        return folder and PathFinder.find_spec(name, [folder])

sys.meta_path.append(Ours)
from multiprocessing.spawn import spawn_main
spawn_main({arguments})
"""


class _Starting(threading.local):
    """The interpreter of the process that this thread starts."""

    interpreter: Interpreter | None = None


_starting = _Starting()


class _WorkerProcess(SpawnProcess):
    """A spawned process that leaves the caller's main module alone."""

    def __init__(self, interpreter: Interpreter | None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "name": _WORKER_NAME})
        self._interpreter = interpreter

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802  the name is Python's
        resource_tracker.ensure_running()  # which is started in the same way, by our own Python
        with _started_by(process_obj._interpreter):
            return SpawnProcess._Popen(process_obj)


@contextmanager
def _started_by(interpreter: Interpreter | None) -> Iterator[None]:
    _starting.interpreter = interpreter
    try:
        yield
    finally:
        _starting.interpreter = None


class WorkerContext(SpawnContext):
    """Makes workers for a pool, and can end them all.

    Args:
        interpreter: That runs them; None: that of this process.
    """

    def __init__(self, interpreter: Interpreter | None = None) -> None:
        super().__init__()
        self._interpreter = interpreter
        self._workers: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802
        """Make a worker; the name and the case are Python's."""
        worker = _WorkerProcess(self._interpreter, *args, **kwargs)
        self._workers = [each for each in self._workers if not _has_ended(each)] + [worker]
        return worker

    def kill_all(self) -> None:
        """Kill every worker, those that still start among them.

        One that were left to start would find its pool's semaphores gone, and say so at length.
        """
        for worker in self._workers:
            if worker.pid is not None and not _has_ended(worker):
                worker.kill()


def _has_ended(worker: SpawnProcess) -> bool:
    try:
        return worker.exitcode is not None
    except (ValueError, AssertionError):  # closed, or not started yet
        return False


def _prepare(name: str) -> dict[str, Any]:
    """Tell a spawned process how to start; a worker is not to run the caller's script again.

    Python has a spawned process import the main module of its parent, for functions defined
    there. Ours never are, and the import would fail in a notebook or a script from stdin and
    would cost every other worker the start of a command line it has no use for.
    """
    data = _prepare_like_python(name)
    if name == _WORKER_NAME:
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
    if _starting.interpreter is not None:
        data.pop("sys_path", None)
    return data


def _executable() -> Any:
    """Return the program that a process is started with."""
    interpreter = _starting.interpreter
    return _executable_like_python() if interpreter is None else os.fsencode(interpreter.path)


def _command_line(**kwargs: Any) -> list[str]:
    """Return the command that a process is started with.

    A Python of another environment is to be isolated: PYTHONPATH may name packages of ours.
    """
    interpreter = _starting.interpreter
    if interpreter is None:
        return _command_line_like_python(**kwargs)
    arguments = ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
    program = _BOOT.format(folders=dict(interpreter.folders), arguments=arguments)
    return [interpreter.path, "-I", "-c", program, "--multiprocessing-fork"]


_prepare_like_python: Callable[[str], dict[str, Any]] = spawn.get_preparation_data
_executable_like_python: Callable[[], Any] = spawn.get_executable
_command_line_like_python: Callable[..., list[str]] = spawn.get_command_line
spawn.get_preparation_data = _prepare
spawn.get_executable = _executable
spawn.get_command_line = _command_line


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
