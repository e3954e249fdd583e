"""The whole service on one machine: an API and a worker, restarted until it is stopped."""

import logging
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner import interrupts
from tuner.errors import RequestError, WorkError
from tuner.service.children import Child, Program
from tuner.workers.processes.python_command import run_module

_TICK_SECS = 0.2
_GRACE_SECS = 8.0

_LOG = logging.getLogger(__name__)


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
        Program("the worker", run_module("tuner", "worker", *serving.worker_options)),
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
