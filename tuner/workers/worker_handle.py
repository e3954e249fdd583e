"""A worker process as its pool sees it: the call that it serves, and its end of the connection."""

import logging
import os
import pickle
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.engines.environments import Interpreter
from tuner.files.process_folder import worker_folder
from tuner.workers import messages, worker_process
from tuner.workers.confinement.log_rotation import DEFAULT_MAX_BYTES
from tuner.workers.confinement.sandbox import Sandbox
from tuner.workers.exchange import Exchange
from tuner.workers.processes import fork_server, process_start

_CHUNK_BYTES = 1 << 20
# A process that closed its connection ends within this time, or its pool kills it.
_EXIT_TIMEOUT_SECS = 2.0

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

    module: str
    request: bytes
    returns: Any
    timeout_secs: float
    future: Future[Any] = field(default_factory=Future)


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of the processes of one pool.

    Attributes:
        log: File that their output is appended to.
        environ: Environment variables, set before anything is imported.
        max_bytes: Memory that each process may use for data; a call that needs more ends as
            WorkError, or with its process; None for no limit.
        interpreter: Python that runs the processes; None for that of this process.
        max_log_bytes: Length from which the log is rotated when the pool starts.
        sandbox: Limits of the processes on files and network; None for none.
        exchange: Folders for files of their calls, which are removed with the pool; None for
            folders in that of this process.
        cores: Cores that the processes may use; empty for those of this process.
        packages: Packages that the processes import from where this one does, beside the tuner's.
    """

    n_workers: int
    log: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    max_bytes: int | None = None
    interpreter: Interpreter | None = None
    max_log_bytes: int = DEFAULT_MAX_BYTES
    sandbox: Sandbox | None = None
    exchange: Exchange | None = None
    cores: frozenset[int] = frozenset()
    packages: tuple[str, ...] = ()


def make_call(
    module: str, function: str, args: tuple[Any, ...], returns: Any, timeout_secs: float
) -> PendingCall:
    """Return a call of a function by a worker.

    Raises:
        Exception: If an argument cannot be pickled.
    """
    limit = messages.max_bytes(returns)
    request = pickle.dumps((module, function, args, limit))
    return PendingCall(module, messages.framed(request), returns, timeout_secs)


class WorkerHandle:
    """A process that serves one call at a time; used in the thread of its pool.

    Args:
        module: Module of its first call.

    Attributes:
        stream: Connection to it, which does not block.
        call: The call that it serves; None while it is idle.
        deadline: Time by the monotonic clock at which that call times out.
        is_ready: True once it was set up.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        module: str,
    ) -> None:
        self._folder = worker_folder()
        self.stream, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = _start(settings, module, theirs, self._folder)
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
            self.process.wait(fork_server.KILL_TIMEOUT_SECS)
        except subprocess.TimeoutExpired:
            _LOG.warning("worker %d does not end, although it was killed", self.process.pid)
        shutil.rmtree(self._folder, ignore_errors=True)


def _start(
    settings: WorkerSettings, module: str, stream: socket.socket, folder: Path
) -> "subprocess.Popen[bytes] | fork_server.ForkedProcess":
    """Start a process; a template has no modules of another environment."""
    sandbox = "" if settings.sandbox is None else settings.sandbox.as_text()
    arguments = (sandbox, sorted(settings.cores))
    environ, packages = settings.environ, settings.packages
    if settings.interpreter is None and fork_server.is_available():
        return fork_server.fork(
            settings.log,
            stream,
            *arguments,
            module=module,
            folder=folder,
            environ=environ,
            packages=packages,
        )
    return process_start.start(
        settings.interpreter,
        settings.log,
        stream,
        worker_process.__name__,
        *arguments,
        os.getpid(),
        environ={**environ, "TMPDIR": str(folder)},
        packages=packages,
    )


def make_start(n_bytes: int | None) -> PendingCall:
    """Return the call that sets a new worker up; see :func:`worker_process.set_up`."""
    return make_call(worker_process.__name__, "set_up", (n_bytes,), None, _START_TIMEOUT_SECS)


# On a machine that is busy, Python itself takes seconds.
_START_TIMEOUT_SECS = 300.0
