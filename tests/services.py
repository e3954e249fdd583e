"""A service as its users meet it: an API process and a worker, on a port of their own."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import httpx

from tests.cli import ROOT, Cli, start
from tests.engines import toy
from tests.forked import Process
from tests.waiting import wait_for


def is_ready(url: str) -> bool:
    """Return whether a service answers that it is ready."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/readyz", timeout=5, trust_env=False, verify=False).is_success
    return False


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Service:
    """Processes on one data directory, with their output in files."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    _running: dict[str, Process] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """URL of the service."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def here(self) -> Cli:
        """Commands on the database of the service, as its operator runs them."""
        return Cli(self.folder, {"TUNER_ENGINE": toy.NAME, "TUNER_N_BUILDERS": "1"})

    def cli(self, folder: Path, **settings: str) -> Cli:
        """Commands of a user somewhere else, who has the URL and nothing more."""
        return Cli(folder, {"TUNER_SERVER": self.url, **settings})

    def start_api(self, *options: str) -> None:
        """Start an API process and wait until it serves."""
        self._start("api", "api", "--port", str(self.port), *options)

        def is_up() -> bool:
            assert self._running["api"].poll() is None, self.output("api")
            return is_ready(self.url)

        wait_for(is_up)

    def start_worker(self, **environ: str) -> None:
        """Start a worker; it has jobs to do once it is awake."""
        self._start("worker", "tuner", "worker", **environ)

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """End a process that was started."""
        process = self._running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):  # it may have ended just now
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def pid(self, name: str) -> int:
        """Return the number of a process that was started."""
        return self._running[name].pid

    def output(self, name: str) -> str:
        """Return what a process wrote on stderr."""
        return (self.folder / f"{name}.log").read_text()

    def _start(self, name: str, *program: str, **environ: str) -> None:
        log: IO[str]
        with (self.folder / f"{name}.log").open("a") as log:
            variables = self.here.environ(**{**self.settings, **environ})
            self._running[name] = start(program, variables, ROOT, log, waits=False)


@contextlib.contextmanager
def running(folder: Path, *, worker: bool = True, **environ: str) -> Iterator[Service]:
    """Run a service with the toy engine, and end it."""
    service = Service(folder)
    try:
        service.start_api()
        if worker:
            service.start_worker(**environ)
        yield service
    finally:
        for name in list(service._running):
            service.stop(name)
