"""A worker process as its pool sees it: the call that it serves, and its end of the connection."""

import logging
import pickle
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.engines.environments import Interpreter
from tuner.process_folder import worker_folder
from tuner.workers import messages, process_start, worker_process
from tuner.workers.sandbox import Sandbox

_CHUNK_BYTES = 1 << 20
# A process that closed its connection ends within this time, or its pool kills it.
_EXIT_TIMEOUT_SECS = 2.0
# A process that was killed ends within this time, unless it is stuck in the kernel.
_KILL_TIMEOUT_SECS = 5.0

_LOG = logging.getLogger(__name__)


@dataclass
class PendingCall:
    """A call that waits for a worker or is served by one.

    Attributes:
        request: The call as the worker reads it.
        returns: Type of its value.
        timeout_secs: Time limit from when a worker takes it.
        future: Its result.
    """

    request: bytes
    returns: Any
    timeout_secs: float
    future: Future[Any] = field(default_factory=Future)


def make_call(
    module: str, function: str, args: tuple[Any, ...], returns: Any, timeout_secs: float
) -> PendingCall:
    """Return a call of a function by a worker.

    Raises:
        Exception: If an argument cannot be pickled.
    """
    limit = messages.max_bytes(returns)
    request = pickle.dumps((module, function, args, limit))
    return PendingCall(messages.framed(request), returns, timeout_secs)


class WorkerHandle:
    """A process that serves one call at a time; used in the thread of its pool.

    Attributes:
        process: The process.
        stream: Connection to it, which does not block.
        call: The call that it serves; None while it is idle.
        deadline: Time by the monotonic clock at which that call times out.
        is_ready: True once it was set up.
    """

    def __init__(
        self,
        interpreter: Interpreter | None,
        log: Path,
        sandbox: Sandbox | None = None,
        packages: Iterable[str] = (),
    ) -> None:
        self._folder = worker_folder()
        self.stream, theirs = socket.socketpair()
        with theirs:
            try:
                self.process: subprocess.Popen[bytes] = process_start.start(
                    interpreter,
                    log,
                    theirs,
                    worker_process.__name__,
                    "" if sandbox is None else sandbox.as_text(),
                    folder=self._folder,
                    packages=packages,
                )
            except BaseException:
                self.stream.close()
                raise
        self.stream.setblocking(False)
        self.call: PendingCall | None = None
        self.deadline = 0.0
        self._taken = 0.0
        self.is_ready = False
        self._outgoing = memoryview(b"")
        self._reader = messages.Reader()

    @property
    def is_idle(self) -> bool:
        """True if it can take a call."""
        return self.is_ready and self.call is None

    @property
    def is_sending(self) -> bool:
        """True while a part of the request was not sent."""
        return bool(self._outgoing)

    def take(self, call: PendingCall) -> None:
        """Serve a call from now on."""
        self.call = call
        self._taken = time.monotonic()
        self.deadline = self._taken + call.timeout_secs
        self._outgoing = memoryview(call.request)
        self.send()

    def add_pause(self, since: float) -> None:
        """Let its call last as much longer as the process was stopped, which ends now."""
        self.deadline += time.monotonic() - max(since, self._taken)

    def send(self) -> None:
        """Send as much of the request as the process reads now."""
        with suppress(BlockingIOError):
            while self._outgoing:
                try:
                    self._outgoing = self._outgoing[self.stream.send(self._outgoing) :]
                except BlockingIOError:
                    raise
                except OSError:  # it ended, which reading tells
                    self._outgoing = memoryview(b"")

    def receive(self) -> bytes | None:
        """Read what has arrived; return the answer when it is complete.

        Raises:
            EOFError: If the process ended.
            GarbageError: If it sends what is not an answer to its call.
        """
        try:
            chunk = self.stream.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError from error
        if not chunk:
            raise EOFError
        if self.call is None or self.is_sending:
            raise messages.GarbageError("a message before the request")
        return self._reader.add(chunk, messages.max_bytes(self.call.returns))

    def wait(self) -> int | None:
        """Return the exit code of a process that ends by itself; None if it does not, in time."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(_EXIT_TIMEOUT_SECS)
        return None

    def end(self) -> None:
        """Kill the process, whose temporary files go with it.

        One that the kernel cannot end, as it waits for a device or a disk, is left behind.
        """
        self.process.kill()
        self.stream.close()
        try:
            self.process.wait(_KILL_TIMEOUT_SECS)
        except subprocess.TimeoutExpired:
            _LOG.warning("worker %d does not end, although it was killed", self.process.pid)
        shutil.rmtree(self._folder, ignore_errors=True)


def make_start(environ: Mapping[str, str], parent: int, n_bytes: int | None) -> PendingCall:
    """Return the call that sets a new worker up; see :func:`worker_process.set_up`."""
    arguments = (dict(environ), parent, n_bytes)
    return make_call(worker_process.__name__, "set_up", arguments, None, _START_TIMEOUT_SECS)


# On a machine that is busy, Python itself takes seconds.
_START_TIMEOUT_SECS = 300.0
