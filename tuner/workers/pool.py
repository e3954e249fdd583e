"""Worker processes on this machine that start once, stay warm and are replaced when lost.

A call names a function; the worker imports its module, so the coordinator never
does. Workers write what they print to a log file, ignore Ctrl-C (the coordinator
decides what to do about it) and die with the process that started them.
"""

import asyncio
import os
import pickle
import signal
import time
from collections.abc import Generator, Iterable, Mapping
from concurrent import futures
from concurrent.futures import CancelledError, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pebble import ProcessExpired, ProcessPool

from tuner import interrupts
from tuner.engines.environments import Interpreter
from tuner.errors import WorkerLost, WorkError
from tuner.workers.base import CallTimeout
from tuner.workers.future_call import end_of
from tuner.workers.process import invoke, set_up
from tuner.workers.spawn_context import WorkerContext

__all__ = ["CallTimeout", "Pool", "PoolCall", "WorkerSettings", "first_of"]

# Threads cannot wait for ever: inf is what a call without time-out gets.
_MOST_PATIENCE_SECS = 3600.0
# Signals that a process earns by what it executes.
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}


@dataclass(frozen=True)
class WorkerSettings:
    """How the processes of one pool are set up.

    Attributes:
        n_workers: Processes.
        log: File that takes what they print.
        environ: Environment variables to set, before anything is imported.
        max_bytes: Memory that each process may take for data; a call that wants more ends as
            WorkError, or with its process; None: no limit.
        patience_secs: A pool in which nothing happens for so long after every time-out has
            passed has lost its calls, and is replaced.
        interpreter: The Python that runs them; None: that of this process.
    """

    n_workers: int
    log: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    max_bytes: int | None = None
    patience_secs: float = 60.0
    interpreter: Interpreter | None = None


class Pool:
    """A pool of worker processes."""

    def __init__(self, settings: WorkerSettings) -> None:
        settings.log.parent.mkdir(parents=True, exist_ok=True)
        self._settings = settings
        self._pool = self._start()
        self._timeouts: dict[Future[Any], float] = {}
        self._last_event = time.monotonic()
        self.n_workers = settings.n_workers

    def submit(
        self, module: str, function: str, *args: Any, timeout_secs: float | None = None
    ) -> "PoolCall":
        """Call ``module.function(*args)`` in a worker.

        The time-out counts from when a worker takes the call; a worker that exceeds it
        is killed and replaced. See :class:`tuner.workers.base.Call` for what comes of it.
        """
        future = self._schedule((module, function, args), timeout_secs)
        self._timeouts[future] = float("inf") if timeout_secs is None else timeout_secs
        self._last_event = time.monotonic()
        future.add_done_callback(self._ended)
        return PoolCall(self, future)

    def call(
        self, module: str, function: str, *args: Any, timeout_secs: float | None = None
    ) -> Any:
        """Submit and wait; raises as :class:`tuner.workers.base.Call`."""
        return self.submit(module, function, *args, timeout_secs=timeout_secs).result()

    def replace_if_stalled(self) -> float:
        """Replace a pool whose calls can no longer end; what they raise is WorkerLost.

        A worker that is killed at the moment it takes a call takes the call with it. Every
        other call ends within its time-out, so that some call must end within the longest.

        Returns:
            Seconds after which to ask again.
        """
        if not self._timeouts:
            return self._settings.patience_secs
        longest = max(list(self._timeouts.values()), default=0.0)
        left = self._last_event + longest + self._settings.patience_secs - time.monotonic()
        if left > 0.0:
            return left
        self._restart()
        return self._settings.patience_secs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers; calls in flight are lost."""
        self._stop()

    def _stop(self) -> None:
        self._pool.stop()
        self._context.kill_all()
        self._pool.join()
        self._context.kill_all()
        for future in list(self._timeouts):
            if not future.done():
                future.set_exception(
                    WorkerLost("a worker died with the call it took", crashed=False)
                )

    def _start(self) -> Any:
        self._context = WorkerContext(self._settings.interpreter)
        return ProcessPool(
            max_workers=self._settings.n_workers,
            initializer=set_up,
            initargs=(
                str(self._settings.log),
                dict(self._settings.environ),
                os.getpid(),
                self._settings.max_bytes,
            ),
            context=self._context,
        )

    def _restart(self) -> None:
        self._stop()
        self._pool = self._start()

    def _schedule(self, call: tuple[str, str, tuple[Any, ...]], timeout_secs: float | None) -> Any:
        """Hand a call to the pool; one that broke, because an idle worker died, is replaced."""
        try:
            return self._pool.schedule(invoke, args=call, timeout=timeout_secs)
        except RuntimeError:
            self._restart()
            return self._pool.schedule(invoke, args=call, timeout=timeout_secs)

    def _ended(self, future: Future[Any]) -> None:
        self._timeouts.pop(future, None)
        self._last_event = time.monotonic()


@dataclass(frozen=True)
class PoolCall:
    """A call that a pool was asked to make; see :class:`tuner.workers.base.Call`."""

    pool: Pool
    future: Future[Any]

    def result(self) -> Any:
        """Wait for the call, and do nothing else meanwhile."""
        while not self.future.done():
            patience = self.pool.replace_if_stalled()
            with interrupts.waiting():
                futures.wait([self.future], min(patience, _MOST_PATIENCE_SECS))
        return self._outcome()

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the call in an event loop."""
        return self._ended().__await__()

    async def _ended(self) -> Any:
        ended = end_of(self.future)
        while not self.future.done():
            patience = self.pool.replace_if_stalled()
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), min(patience, _MOST_PATIENCE_SECS))
        return self._outcome()

    def _outcome(self) -> Any:
        try:
            return _unpickled(self.future.result())
        except BrokenProcessPool as error:
            raise WorkerLost("an idle worker was killed", crashed=False) from error
        except CancelledError as error:
            raise WorkerLost("its pool was replaced", crashed=False) from error
        except ProcessExpired as error:
            crashed = error.exitcode is not None and -error.exitcode in _CRASHES
            raise WorkerLost(_obituary(error.exitcode), crashed=crashed) from error


def first_of(calls: Iterable[PoolCall]) -> PoolCall:
    """Wait until one of several calls has ended, and return it; of several the first."""
    waited = list(calls)
    while True:
        for call in waited:
            if call.future.done():
                return call
        patience = min(call.pool.replace_if_stalled() for call in waited)
        with interrupts.waiting():
            futures.wait(
                [call.future for call in waited],
                min(patience, _MOST_PATIENCE_SECS),
                return_when=futures.FIRST_COMPLETED,
            )


def _unpickled(answer: bytes) -> Any:
    """Read what a worker answered; it may be anything.

    Raises:
        WorkError: If it cannot be read here.
    """
    try:
        return pickle.loads(answer)
    except Exception as error:
        raise WorkError(f"the answer cannot be read: {type(error).__name__}: {error}") from error


def _obituary(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        try:
            return f"the worker was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"the worker was killed by signal {-exit_code}"
    return f"the worker exited with status {exit_code}"
