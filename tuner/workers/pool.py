"""Worker processes on this machine that start once, stay warm and are replaced when lost.

A call names a function, whose module only the worker imports, never the coordinator. Workers
print to a log file, ignore Ctrl-C (the coordinator decides what it means) and die with the
process that started them. Pebble kills and replaces a worker whose call exceeds its time-out;
:mod:`tuner.workers.worker_process` limits the memory of each.
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
from tuner.workers.future_call import done_event
from tuner.workers.log_rotation import rotate
from tuner.workers.pause_group import current_group
from tuner.workers.spawn_context import WorkerContext
from tuner.workers.worker_process import invoke, set_up

__all__ = ["MAX_CALL_SECS", "CallTimeout", "Pool", "PoolCall", "WorkerSettings", "first_of"]

# Time limit of calls that have none of their own, and of each wait of a thread.
MAX_CALL_SECS = 3600.0
# Signals that a process brings about by what it executes.
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of the processes of one pool.

    Attributes:
        n_workers: Number of processes.
        log: File that their output is appended to.
        environ: Environment variables, set before anything is imported.
        max_bytes: Memory that each process may use for data; a call that needs more ends as
            WorkError, or with its process; None for no limit.
        stall_timeout_secs: Time without an event, after the longest time-out has passed, in
            which a pool counts as stalled: it has lost its calls and is replaced.
        interpreter: Python that runs the processes; None for that of this process.
    """

    n_workers: int
    log: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    max_bytes: int | None = None
    stall_timeout_secs: float = 60.0
    interpreter: Interpreter | None = None


class Pool:
    """A pool of worker processes.

    :mod:`tuner.workers.factory` opens those of the tuner.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        settings.log.parent.mkdir(parents=True, exist_ok=True)
        rotate(settings.log)
        self._settings = settings
        self._pool = self._start()
        self._timeouts: dict[Future[Any], float] = {}
        self._last_event = time.monotonic()
        self.n_workers = settings.n_workers
        self._group = current_group()
        if self._group is not None:
            self._group.add(self)

    def submit(
        self, module: str, function: str, *args: Any, timeout_secs: float = MAX_CALL_SECS
    ) -> "PoolCall":
        """Call ``module.function(*args)`` in a worker.

        The time-out counts from when a worker takes the call; a worker that exceeds it
        is killed and replaced. :class:`tuner.workers.base.Call` lists what the call raises.
        """
        if self._group is not None:
            self._group.wait_until_running()
        future = self._schedule((module, function, args), timeout_secs)
        self._timeouts[future] = timeout_secs
        self._last_event = time.monotonic()
        future.add_done_callback(self._ended)
        return PoolCall(self, future)

    def call(
        self, module: str, function: str, *args: Any, timeout_secs: float = MAX_CALL_SECS
    ) -> Any:
        """Submit a call and wait for it; raises as :class:`tuner.workers.base.Call`."""
        return self.submit(module, function, *args, timeout_secs=timeout_secs).result()

    def replace_if_stalled(self) -> float:
        """Replace the workers if the calls can no longer end; those calls raise WorkerLost.

        A call is lost without an event if its worker is killed at the moment it takes the call.
        Every other call ends within its time-out, so that some call ends within the longest.

        Returns:
            Seconds after which to check again.
        """
        stall_timeout = self._settings.stall_timeout_secs
        if not self._timeouts:
            return stall_timeout
        longest = max(list(self._timeouts.values()), default=0.0)
        left = self._last_event + longest + stall_timeout - time.monotonic()
        if left > 0.0:
            return left
        self._restart()
        return stall_timeout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers; calls in flight are lost."""
        if self._group is not None:
            self._group.discard(self)
        self._stop()

    def pause(self) -> None:
        """Stop the workers, and the processes they started, until :meth:`resume`.

        The time-outs of their calls go on.
        """
        self._context.pause_all()

    def resume(self) -> None:
        """Let paused workers continue."""
        self._context.resume_all()

    def _stop(self) -> None:
        self._pool.stop()
        self._context.resume_all()
        self._context.kill_all()
        self._pool.join()
        self._context.kill_all()
        for future in list(self._timeouts):
            if not future.done():
                future.set_exception(
                    WorkerLost("a worker died with the call it took", crashed=False)
                )

    def _start(self) -> Any:
        self._context = WorkerContext(self._settings.interpreter, self._settings.log)
        return ProcessPool(
            max_workers=self._settings.n_workers,
            initializer=set_up,
            initargs=(dict(self._settings.environ), os.getpid(), self._settings.max_bytes),
            context=self._context,
        )

    def _restart(self) -> None:
        self._stop()
        self._pool = self._start()

    def _schedule(self, call: tuple[str, str, tuple[Any, ...]], timeout_secs: float) -> Any:
        """Hand a call to pebble's pool; replace a pool that broke because an idle worker died."""
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
    """A call of a pool, as :class:`tuner.workers.base.Call` promises."""

    pool: Pool
    future: Future[Any]

    def result(self) -> Any:
        """Block until the call has ended, and return its result."""
        while not self.future.done():
            secs = self.pool.replace_if_stalled()
            with interrupts.waiting():
                futures.wait([self.future], min(secs, MAX_CALL_SECS))
        return self._outcome()

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the call in an event loop."""
        return self._wait().__await__()

    async def _wait(self) -> Any:
        done = done_event(self.future)
        while not self.future.done():
            secs = self.pool.replace_if_stalled()
            with suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), min(secs, MAX_CALL_SECS))
        return self._outcome()

    def _outcome(self) -> Any:
        try:
            return _unpickle(self.future.result())
        except BrokenProcessPool as error:
            raise WorkerLost("an idle worker was killed", crashed=False) from error
        except CancelledError as error:
            raise WorkerLost("its pool was replaced", crashed=False) from error
        except ProcessExpired as error:
            crashed = error.exitcode is not None and -error.exitcode in _CRASHES
            raise WorkerLost(_describe_exit(error.exitcode), crashed=crashed) from error


def first_of(calls: Iterable[PoolCall]) -> PoolCall:
    """Wait until one of several calls has ended, and return it; ties go to the first."""
    pending = list(calls)
    while True:
        for call in pending:
            if call.future.done():
                return call
        secs = min(call.pool.replace_if_stalled() for call in pending)
        with interrupts.waiting():
            futures.wait(
                [call.future for call in pending],
                min(secs, MAX_CALL_SECS),
                return_when=futures.FIRST_COMPLETED,
            )


def _unpickle(answer: bytes) -> Any:
    """Read the answer of a worker, which may be anything.

    Raises:
        WorkError: If it cannot be read in this process.
    """
    try:
        return pickle.loads(answer)
    except Exception as error:
        raise WorkError(f"the answer cannot be read: {type(error).__name__}: {error}") from error


def _describe_exit(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        try:
            return f"the worker was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"the worker was killed by signal {-exit_code}"
    return f"the worker exited with status {exit_code}"
