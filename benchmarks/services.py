"""Processes of the service for benchmarks, on loopback and ended in every case."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tuner.workers.confinement.environment import MORE_VARIABLES

ROOT = Path(__file__).parents[1]
_START_SECS = 60.0
_PR_SET_PDEATHSIG = 1
_STOP_SECS = 20.0


@contextmanager
def process(*command: str, data_dir: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command for the duration of the block, in a process group of its own.

    Args:
        command: Program and arguments.
        data_dir: Its data directory; ``service.log`` in it receives the output.
        environ: Additional variables; ``TUNER_*`` variables of this process are not passed on.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    config = data_dir / "config.toml"
    config.touch()
    places = {
        "TUNER_DATA_DIR": str(data_dir),
        "TUNER_CONFIG": str(config),
        MORE_VARIABLES: os.environ[MORE_VARIABLES],
    }
    with (data_dir / "service.log").open("ab") as log:
        started = subprocess.Popen(
            command,
            env={**ours, **places, **environ},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  no other thread runs yet
        )
    try:
        yield started
    finally:
        _end(started)


@contextmanager
def service(
    database_url: str, data_dir: Path, engine: str, *options: str, **environ: str
) -> Iterator[tuple[str, int]]:
    """Run ``tuner serve``; yield its URL and process id once it is ready.

    Args:
        database_url: Its database.
        data_dir: Its data directory; ``service.log`` in it receives the output.
        engine: Module of its engine.
        options: More options of the command.
        environ: More environment variables.

    Raises:
        RuntimeError: If it does not become ready.
    """
    tuner = str(Path(sys.executable).with_name("tuner"))
    where = ("--host", "127.0.0.1", "--port", str(port := free_port()), "--database", database_url)
    command = (tuner, "serve", *where, *options)
    with process(*command, data_dir=data_dir, TUNER_ENGINE=engine, **environ) as started:
        wait_ready(url := f"http://127.0.0.1:{port}", started, data_dir / "service.log")
        yield url, started.pid


def wait_ready(url: str, started: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until a service reports that it is ready.

    Raises:
        RuntimeError: If it ends, or is not ready in a minute.
    """
    deadline = time.monotonic() + _START_SECS
    while time.monotonic() < deadline and started.poll() is None:
        with suppress(httpx.HTTPError):
            if httpx.get(f"{url}/readyz", timeout=5.0, verify=False).is_success:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{url} did not become ready: {log.read_text(errors='replace')[-2000:]}")


def exit_on_sigterm() -> None:
    """Turn SIGTERM into an exception, so that this process ends its children."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _end_with_parent() -> None:
    """Request a SIGTERM from Linux when the benchmark dies, even by kill -9."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(started: "subprocess.Popen[bytes]") -> None:
    started.terminate()
    with suppress(subprocess.TimeoutExpired):
        started.wait(_STOP_SECS)
    # Surviving children are in its group.
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()
