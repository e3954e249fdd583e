"""Worker processes on this machine that start once, stay warm and are replaced when lost.

A call names a function; the worker imports its module, so the coordinator never
does. Workers write what they print to a log file, ignore Ctrl-C (the coordinator
decides what to do about it) and die with the process that started them.
"""

import ctypes
import importlib
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future as AnyFuture
from concurrent.futures import TimeoutError as CallTimeout
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import spawn
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pebble import ProcessExpired, ProcessPool

from tuner.errors import TunerError, WorkerLost, WorkError

__all__ = ["CallTimeout", "Future", "Pool", "WorkerSettings", "result_of"]

Future = AnyFuture[Any]

_WORKER_NAME = "tuner-worker"
_PR_SET_PDEATHSIG = 1
# Signals that a process earns by what it executes.
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}


@dataclass(frozen=True)
class WorkerSettings:
    """How the processes of one pool are set up.

    Attributes:
        n_workers: Processes.
        log: File that takes what they print.
        environ: Environment variables to set, before anything is imported.
        max_calls: Replace a worker after so many calls; 0 keeps it.
    """

    n_workers: int
    log: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    max_calls: int = 0


class Pool:
    """A pool of worker processes."""

    def __init__(self, settings: WorkerSettings) -> None:
        settings.log.parent.mkdir(parents=True, exist_ok=True)
        self._settings = settings
        self._pool = self._start()
        self.n_workers = settings.n_workers

    def _start(self) -> Any:
        return ProcessPool(
            max_workers=self._settings.n_workers,
            max_tasks=self._settings.max_calls,
            initializer=_set_up,
            initargs=(str(self._settings.log), dict(self._settings.environ), os.getpid()),
            context=_WorkerContext(),
        )

    def _schedule(self, call: tuple[str, str, tuple[Any, ...]], timeout_secs: float | None) -> Any:
        """Hand a call to the pool; one that broke, because an idle worker died, is replaced."""
        try:
            return self._pool.schedule(_invoke, args=call, timeout=timeout_secs)
        except RuntimeError:
            self.close()
            self._pool = self._start()
            return self._pool.schedule(_invoke, args=call, timeout=timeout_secs)

    def submit(
        self, module: str, function: str, *args: Any, timeout_secs: float | None = None
    ) -> Future:
        """Call ``module.function(*args)`` in a worker.

        The time-out counts from when a worker takes the call; a worker that exceeds it
        is killed and replaced. See :func:`result_of` for what the future raises.
        """
        future: Future = self._schedule((module, function, args), timeout_secs)
        return future

    def call(
        self, module: str, function: str, *args: Any, timeout_secs: float | None = None
    ) -> Any:
        """Submit and wait; raises as :func:`result_of`."""
        return result_of(self.submit(module, function, *args, timeout_secs=timeout_secs))

    def close(self) -> None:
        """Kill the workers; calls in flight are lost."""
        self._pool.stop()
        self._pool.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def result_of(future: Future) -> Any:
    """Wait for a call.

    Raises:
        CallTimeout: If it took longer than its time-out.
        WorkerLost: If its worker died.
        TunerError, OSError: Whatever the function raised; anything else it raised arrives as
            WorkError, with the traceback in the worker's log.
    """
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise WorkerLost("an idle worker was killed", crashed=False) from error
    except ProcessExpired as error:
        crashed = error.exitcode is not None and -error.exitcode in _CRASHES
        raise WorkerLost(_obituary(error.exitcode), crashed=crashed) from error


def _obituary(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        try:
            return f"the worker was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"the worker was killed by signal {-exit_code}"
    return f"the worker exited with status {exit_code}"


class _WorkerProcess(SpawnProcess):
    """A spawned process that leaves the caller's main module alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "name": _WORKER_NAME})


class _WorkerContext(SpawnContext):
    """Makes workers for a pool."""

    Process = _WorkerProcess


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
    return data


_prepare_like_python: Callable[[str], dict[str, Any]] = spawn.get_preparation_data
spawn.get_preparation_data = _prepare


def _set_up(log: str, environ: dict[str, str], parent: int) -> None:
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent(parent)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies; without it, kill -9 leaves orphans."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(1)


def _invoke(module: str, function: str, args: tuple[Any, ...]) -> Any:
    """Call a function; what it raises must mean something where its module is not imported."""
    try:
        return getattr(importlib.import_module(module), function)(*args)
    except (TunerError, OSError):
        raise
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        raise WorkError(f"{function} failed: {type(error).__name__}: {lines[-1]}") from None
