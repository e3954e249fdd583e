"""The whole service on one machine: an API and a worker, restarted until it is stopped."""

import ctypes
import logging
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tuner import interrupts
from tuner.errors import RequestError, WorkError
from tuner.workers.confinement.environment import without_current_folder
from tuner.workers.processes.python_command import run_module

_TICK_SECS = 0.2
_GRACE_SECS = 8.0

_LOG = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_MAX_BACK_OFF_SECS = 30.0
# A process that ran longer counts as healthy, and its failure as the first.
_HEALTHY_SECS = 60.0


@dataclass(frozen=True)
class Program:
    """Command of a child process.

    Attributes:
        name: Name for logs.
        command: Program and its arguments.
        nice: Amount by which the priority is lowered.
        oom_score_adj: Addition to the score by which Linux chooses a process to kill when memory
            runs out, from 0 to 1000.
    """

    name: str
    command: Sequence[str]
    nice: int = 0
    oom_score_adj: int = 0


class Child:
    """One program, started again when it ends, with a longer pause each time it ends soon."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._n_failures = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._next = 0.0

    def poll(self) -> int | None:
        """Start the program if it is due; returns its exit status if it has just ended."""
        if self._process is None:
            if time.monotonic() >= self._next:
                self._start()
            return None
        status = self._process.poll()
        if status is None:
            return None
        self._process = None
        ran = time.monotonic() - self._started
        self._n_failures = 1 if ran > _HEALTHY_SECS else self._n_failures + 1
        wait = min(2.0 ** (self._n_failures - 1), _MAX_BACK_OFF_SECS)
        self._next = time.monotonic() + wait
        _LOG.warning(
            "%s ended with status %d after %.0f s; it starts again in %.0f s",
            self.program.name,
            status,
            ran,
            wait,
        )
        return status

    def signal(self, number: int) -> None:
        """Send a signal to the program if it is running."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def has_ended(self) -> bool:
        """Return whether the program is not running."""
        return self._process is None or self._process.poll() is not None

    def _start(self) -> None:
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            self.program.command,
            stdin=subprocess.DEVNULL,
            env=without_current_folder(os.environ),
            # Its own session, because the supervisor alone decides what Ctrl-C means.
            start_new_session=True,
            preexec_fn=_prepare_child(os.getpid(), self.program),  # noqa: PLW1509  no threads here
        )
        _LOG.info("started %s", self.program.name, extra={"pid": self._process.pid})


def _prepare_child(parent: int, program: Program) -> Callable[[], None]:
    """Return the function that a child runs before it becomes its program."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        # Linux keeps this across exec, so that children never outlive the supervisor.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.nice(program.nice)
        if program.oom_score_adj:
            with suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text(str(program.oom_score_adj))

    return prepare


@dataclass(frozen=True)
class Serving:
    """Address and options of a service.

    Attributes:
        host: Address to listen on.
        port: Port to listen on.
        api_options: Further options of the API's command.
        worker_options: Options of the worker's command; None for a service without a worker.
    """

    host: str
    port: int
    api_options: Sequence[str]
    worker_options: Sequence[str] | None

    @property
    def url(self) -> str:
        """URL for a browser on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def supervise(serving: Serving, on_ready: Callable[[str], None]) -> None:
    """Keep the processes running until Ctrl-C or SIGTERM, then stop them.

    Args:
        serving: Address and options.
        on_ready: Receives a message, once, when the service answers requests.

    Raises:
        Interrupted: On Ctrl-C or SIGTERM.
        RequestError: If the port is in use.
        WorkError: If a process ends before the service was ready for the first time.
    """
    check_port(serving.host, serving.port)
    children = [Child(program) for program in programs(serving)]
    is_ready = False
    try:
        while True:
            for child in children:
                status = child.poll()
                if status is not None and not is_ready and status != -signal.SIGKILL:
                    raise WorkError(
                        f"{child.program.name} ended with status {status} before it was ready"
                    )
            if not is_ready and answers(f"{serving.url}/readyz"):
                is_ready = True
                on_ready(f"Serving on {serving.url}; Ctrl-C stops it.")
            with interrupts.waiting():
                time.sleep(_TICK_SECS)
    finally:
        stop(children)


def programs(serving: Serving) -> list[Program]:
    """Return the commands of the processes."""
    address = ("--host", serving.host, "--port", str(serving.port))
    api = run_module("api", *address, *serving.api_options)
    if serving.worker_options is None:
        return [Program("the API", api)]
    # The API has a lower priority, so that requests do not disturb measurements, and ends before
    # the worker when memory runs out.
    return [
        # This process says that it was stopped.
        Program("the worker", run_module("tuner", "worker", "-q", *serving.worker_options)),
        Program("the API", api, nice=5, oom_score_adj=500),
    ]


def stop(children: Sequence[Child]) -> None:
    """Ask the programs to end, and kill the rest after some seconds."""
    for child in children:
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_SECS
    while not all(child.has_ended() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    for child in children:
        if not child.has_ended():
            _LOG.warning("%s does not end and is killed", child.program.name)
            child.signal(signal.SIGKILL)


def free_port(host: str) -> int:
    """Return a port that is free now."""
    with _bound(host, 0) as bound:
        port: int = bound.getsockname()[1]
        return port


def check_port(host: str, port: int) -> None:
    """Check that an address can be listened on.

    Raises:
        RequestError: If it cannot, with the reason.
    """
    _bound(host, port).close()


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise RequestError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise RequestError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return bound


def answers(url: str) -> bool:
    """Return whether a URL answers with status 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=1.0) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False
