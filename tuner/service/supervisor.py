"""The whole service on one machine: an API and a worker, kept running until it is stopped."""

import logging
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner import interrupts
from tuner.errors import RequestError, WorkError
from tuner.service.children import Child, Program

_TICK_SECS = 0.2
_GRACE_SECS = 8.0

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Serving:
    """What is served.

    Attributes:
        host: Address to listen on.
        port: Port to listen on.
        api_options: Of the API, beyond those.
        worker_options: Of the worker; None: there is none.
    """

    host: str
    port: int
    api_options: Sequence[str]
    worker_options: Sequence[str] | None

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def supervise(serving: Serving, say: Callable[[str], None]) -> None:
    """Keep the processes running until Ctrl-C or SIGTERM, and stop them then.

    Args:
        serving: What to serve.
        say: Told, once, that it can be reached.

    Raises:
        Interrupted: When it was stopped.
        RequestError: If the port is taken.
        WorkError: If a process ends before the service was ever ready.
    """
    check_port(serving.host, serving.port)
    children = [Child(program) for program in programs(serving)]
    is_ready = False
    try:
        while True:
            for child in children:
                status = child.tend()
                if status is not None and not is_ready and status != -signal.SIGKILL:
                    raise WorkError(
                        f"{child.program.name} ended with status {status} before it was ready"
                    )
            if not is_ready and answers(f"{serving.url}/readyz"):
                is_ready = True
                say(f"Serving on {serving.url}; Ctrl-C stops it.")
            with interrupts.waiting():
                time.sleep(_TICK_SECS)
    finally:
        stop(children)


def programs(serving: Serving) -> list[Program]:
    """Return what is to run."""
    # -P: a folder where the user happens to be is no place to import from.
    python = (sys.executable, "-P", "-m")
    where = ("--host", serving.host, "--port", str(serving.port))
    api = (*python, "api", *where, *serving.api_options)
    if serving.worker_options is None:
        return [Program("the API", api)]
    # Requests give way to measurements.
    return [
        Program("the worker", (*python, "tuner", "worker", *serving.worker_options)),
        Program("the API", api, nice=5),
    ]


def stop(children: Sequence[Child]) -> None:
    """Ask the programs to end, and end those that do not within seconds."""
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
    """Return a port that nobody listens on now."""
    with _bound(host, 0) as bound:
        port: int = bound.getsockname()[1]
        return port


def check_port(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on.

    Raises:
        RequestError: If it cannot; the message says why.
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
    """Return whether a page is there."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=1.0) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False
