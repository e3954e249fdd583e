"""Worker processes on this machine that start once, stay warm and are replaced when lost.

A call names a function, whose module only the worker imports, never the coordinator. Workers
print to a log file, ignore Ctrl-C and SIGTERM (the coordinator decides what they mean) and die
with the process that started them. Each has a connection of its own, by which it answers its calls
in messages of :mod:`tuner.workers.messages`: it cannot answer the calls of others, and what it
sends is not executed. :mod:`tuner.workers.worker_process` limits the memory of each, and confines
it.
"""

import atexit
import os
import select
import signal
import tempfile
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tuner.engines.result_types import result_type
from tuner.errors import WorkerLost
from tuner.files.process_folder import process_folder
from tuner.workers import messages
from tuner.workers.base import CallTimeout, FutureCall
from tuner.workers.confinement.log_rotation import rotate
from tuner.workers.exchange import Exchange
from tuner.workers.processes import fork_server, process_trees
from tuner.workers.processes.pause_group import current_group
from tuner.workers.worker_handle import (
    PendingCall,
    WorkerHandle,
    WorkerSettings,
    make_call,
    make_start,
)

if TYPE_CHECKING:
    import psutil

__all__ = ["MAX_CALL_SECS", "CallTimeout", "Pool", "WorkerSettings"]

# Time limit of calls that have none of their own.
MAX_CALL_SECS = 3600.0
# Interval between checks that busy workers live: a process that one left behind may keep its
# connection open.
_CHECK_INTERVAL_SECS = 1.0
# Signals that a process brings about by what it executes.
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}
_open_pools: "weakref.WeakSet[Pool]" = weakref.WeakSet()


class Pool:
    """A pool of worker processes; each starts when a call needs it.

    :mod:`tuner.workers.factory` opens those of the tuner. A thread of the pool hands calls to
    workers and reads what they answer.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        settings.log.parent.mkdir(parents=True, exist_ok=True)
        rotate(settings.log, settings.max_log_bytes)
        self._settings = settings
        self._lock = threading.Lock()
        self._waiting: deque[PendingCall] = deque()
        self._workers: list[WorkerHandle] = []
        self._paused: list[psutil.Process] = []
        self._is_paused = False
        self._paused_at = 0.0
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._event = -1
        self._exchange = settings.exchange
        self.n_workers = settings.n_workers
        self._group = current_group()
        if self._group is not None:
            self._group.add(self)

    @property
    def process_ids(self) -> list[int]:
        """Ids of the workers."""
        with self._lock:
            return [pid for worker in self._workers if (pid := worker.process.pid)]

    @property
    def exchange(self) -> Exchange:
        """Folders for files of its calls."""
        if self._exchange is None:
            self._exchange = Exchange(Path(tempfile.mkdtemp(dir=process_folder())))
            self._exchange.make()
        return self._exchange

    def submit(
        self,
        module: str,
        function: str,
        *args: Any,
        timeout_secs: float = MAX_CALL_SECS,
        returns: Any = ...,
    ) -> FutureCall:
        """Call ``module.function(*args)`` in a worker.

        The time-out counts from when a worker takes the call; a worker that exceeds it
        is killed and replaced. :class:`tuner.workers.base.Call` lists what the call raises.

        Args:
            *args: Its arguments.
            timeout_secs: Time limit.
            returns: Type of the value; by default that of the engine's function of this name, or
                plain data.

        Raises:
            Exception: If an argument cannot be pickled.
        """
        if self._group is not None:
            self._group.wait_until_running()
        returns = result_type(function) if returns is ... else returns
        call = make_call(module, function, args, returns, timeout_secs)
        problem = "its pool is closed"
        with self._lock:
            if not self._is_closed:
                self._waiting.append(call)
                problem = self._wake()
                if problem:
                    self._waiting.remove(call)
        if problem:
            call.future.set_exception(WorkerLost(problem, crashed=False))
        return FutureCall(call.future)

    def call(
        self,
        module: str,
        function: str,
        *args: Any,
        timeout_secs: float = MAX_CALL_SECS,
        returns: Any = ...,
    ) -> Any:
        """Submit a call and wait for it; raises as :class:`tuner.workers.base.Call`."""
        call = self.submit(module, function, *args, timeout_secs=timeout_secs, returns=returns)
        return call.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers; calls in flight are lost."""
        if self._group is not None:
            self._group.discard(self)
        with self._lock:
            self._is_closed = True
            if self._thread is not None:
                self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.resume()
        if self._exchange is not None:
            self._exchange.remove()

    def pause(self) -> None:
        """Stop the workers, and the processes they started, until :meth:`resume`.

        The time-outs of their calls wait as well. A worker that is starting stops once it is set
        up: before, it would outlive this process, stopped for ever.
        """
        with self._lock:
            if not self._is_paused:
                self._paused_at = time.monotonic()
            self._is_paused = True
            for worker in self._workers:
                if worker.is_ready:
                    self._paused += process_trees.stop(worker.process.pid)

    def resume(self) -> None:
        """Continue the processes that were stopped, though their workers may have died."""
        with self._lock:
            if not self._is_paused:
                return
            for worker in self._workers:
                worker.add_pause(self._paused_at)
            # After that, because the thread of the pool compares deadlines unless it is set.
            self._is_paused = False
            paused, self._paused = self._paused, []
            process_trees.resume(paused)

    def _wake(self) -> str:
        """Have the thread look for calls; the first starts it. The caller holds the lock.

        Returns:
            Why it cannot be started; empty if it lives.
        """
        if self._thread is not None:
            if self._event >= 0:
                os.eventfd_write(self._event, 1)
            return ""
        thread = threading.Thread(target=self._run, name="worker-pool", daemon=True)
        try:
            self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            thread.start()
        except (OSError, RuntimeError) as error:
            if self._event >= 0:
                os.close(self._event)
            self._event = -1
            return f"no thread can be started: {error}"
        self._thread = thread
        _open_pools.add(self)
        return ""

    def _run(self) -> None:
        """Serve calls until the pool is closed; workers live as long as this thread."""
        try:
            while not self._is_closed:
                self._assign()
                self._wait()
                self._check()
        finally:
            with self._lock:
                self._is_closed = True
            for worker in list(self._workers):
                self._remove(worker, WorkerLost("its pool was closed", crashed=False))
            while self._waiting:
                self._fail_next(WorkerLost("its pool was closed", crashed=False))
            with self._lock:
                os.close(self._event)
                self._event = -1

    def _assign(self) -> None:
        """Give waiting calls to idle workers, and start workers for others."""
        for worker in self._workers:
            if worker.is_idle and (call := self._next_call()) is not None:
                worker.take(call)
        # A worker that cannot be started costs the call that waits longest.
        while len(self._workers) < self._settings.n_workers and self._lacks_workers():
            self._start_worker()

    def _lacks_workers(self) -> bool:
        """Return whether more calls wait than workers are starting."""
        return len(self._waiting) > sum(not worker.is_ready for worker in self._workers)

    def _start_worker(self) -> None:
        settings = self._settings
        try:
            worker = WorkerHandle(settings, self._waiting[0].module)
        except OSError as error:
            self._fail_next(WorkerLost(f"no worker can be started: {error}", crashed=False))
            return
        with self._lock:
            self._workers.append(worker)
        worker.take(make_start(settings.max_bytes))

    def _wait(self) -> None:
        """Wait for a submitted call, an answer, or the next check, and serve what is there."""
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        workers = {worker.stream.fileno(): worker for worker in self._workers}
        for descriptor, worker in workers.items():
            poll.register(descriptor, select.POLLIN | (select.POLLOUT * worker.is_sending))
        for descriptor, events in poll.poll(self._wait_millis()):
            if descriptor == self._event:
                os.eventfd_read(self._event)
                continue
            if events & select.POLLOUT:
                workers[descriptor].send()
            if events & ~select.POLLOUT:
                self._receive(workers[descriptor])

    def _wait_millis(self) -> float | None:
        deadlines = [worker.deadline for worker in self._workers if worker.call is not None]
        if not deadlines:
            return None
        if self._is_paused:
            return 1000.0 * _CHECK_INTERVAL_SECS
        secs = min(min(deadlines) - time.monotonic(), _CHECK_INTERVAL_SECS)
        return max(1000.0 * secs, 0.0)

    def _receive(self, worker: WorkerHandle) -> None:
        """Read from a worker; one that ended, or sends what is not an answer, is removed."""
        call = worker.call
        try:
            answer = worker.receive()
            if answer is None or call is None:
                return
            value = messages.decode(answer, call.returns)
        except EOFError:
            self._remove_ended(worker)
        except messages.GarbageError as error:
            text = f"the worker sent what is not an answer: {error}"
            self._remove(worker, WorkerLost(text, crashed=True))
        except Exception as error:
            if not worker.is_ready:
                self._remove(worker, error)
            elif call is not None:
                worker.call = None
                call.future.set_exception(error)
        else:
            worker.call = None
            if not worker.is_ready:
                with self._lock:
                    worker.is_ready = True
                    if self._is_paused:
                        self._paused += process_trees.stop(worker.process.pid)
            call.future.set_result(value)

    def _check(self) -> None:
        """Remove workers whose calls took too long, and workers that ended unnoticed."""
        for worker in list(self._workers):
            if worker.call is None:
                continue
            is_late = self._is_late(worker)
            if not is_late and worker.process.poll() is None:
                continue
            # It may have answered before, while another worker was ended.
            self._receive(worker)
            if worker.call is None or worker not in self._workers:
                continue
            if is_late:
                text = f"the call took longer than {worker.call.timeout_secs:g} s"
                self._remove(worker, CallTimeout(text))
            else:
                self._remove_ended(worker)

    def _is_late(self, worker: WorkerHandle) -> bool:
        with self._lock:
            return not self._is_paused and time.monotonic() >= worker.deadline

    def _remove_ended(self, worker: WorkerHandle) -> None:
        status = worker.wait()
        if status is None:
            error = WorkerLost("the worker closed its connection")
        else:
            # SIGTERM, which workers ignore once they are set up, is an orderly stop.
            crashed, killed = -status in _CRASHES, -status == signal.SIGKILL
            error = WorkerLost(_describe_exit(status), crashed=crashed, killed=killed)
        self._remove(worker, error)

    def _remove(self, worker: WorkerHandle, error: Exception) -> None:
        """End a worker with an error for its call; one that did not start costs a waiting call."""
        with self._lock:
            self._workers.remove(worker)
        worker.end()
        if worker.call is not None:
            worker.call.future.set_exception(error)
        if not worker.is_ready:
            self._fail_next(error)

    def _next_call(self) -> PendingCall | None:
        """Return the call that waits longest and was not cancelled."""
        while self._waiting:
            call = self._waiting.popleft()
            if call.future.set_running_or_notify_cancel():
                return call
        return None

    def _fail_next(self, error: Exception) -> None:
        call = self._next_call()
        if call is not None:
            call.future.set_exception(error)


@atexit.register
def _close_all() -> None:
    """Kill the workers of pools that were not closed."""
    for pool in list(_open_pools):
        pool.close()


# In a forked child, the workers and the threads that serve them are the parent's.
os.register_at_fork(after_in_child=_open_pools.clear)


def _describe_exit(status: int) -> str:
    if status == fork_server.CANNOT_FORK:
        return "no worker can be started: the system refuses another process"
    if status >= 0:
        return f"the worker exited with status {status}"
    try:
        return f"the worker was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"the worker was killed by signal {-status}"
