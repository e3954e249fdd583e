"""The command line, run as a process with its own data directory."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from tests.forked import TERMINAL, Process, fork_server
from tuner.workers import worker_process

ROOT = Path(__file__).parents[1]
# Variables that control the engines of tests, their faults and clocks.
WORKER_VARIABLES = "TOY_*,FAULTY_*,CLOCK_*,HANG_*,TUNER_TEST_*"

_TIMEOUT_SECS = 300.0


@dataclass(frozen=True)
class Answer:
    """The result of a finished command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout; any other output is an error."""
        value: dict[str, Any] = json.loads(self.out)
        return value

    @property
    def complaint(self) -> str:
        """The last line on stderr."""
        return self.err.strip().splitlines()[-1] if self.err.strip() else ""


def environ_of(folder: Path) -> dict[str, str]:
    """Return ours for commands on a folder, without settings of a developer or a terminal."""
    others = ("TUNER_", *TERMINAL)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(others)}
    config = folder / "config.toml"
    config.touch()
    return {
        **inherited,
        "PYTHONPATH": str(ROOT),
        "TUNER_DATA_DIR": str(folder / "data"),
        "TUNER_CONFIG": str(config),
        # As on a machine of its own: other tests measure at the same time.
        "TUNER_RUNTIME_DIR": str(folder / "locks"),
        "TUNER_WORKER_ENVIRONMENT": WORKER_VARIABLES,
    }


@dataclass(frozen=True)
class Cli:
    """A data directory, and a way to run commands on it in processes of their own."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def data_dir(self) -> Path:
        """Data directory of the commands."""
        return self.folder / "data"

    @property
    def url(self) -> str:
        """The URL of the default database."""
        return f"sqlite:///{self.data_dir / 'tuner.db'}"

    def count_records(self) -> int:
        """Count the trials in the database, without opening it the way a command does."""
        path = self.data_dir / "tuner.db"
        if not path.is_file():
            return 0
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
        try:
            (count,) = connection.execute("SELECT count(*) FROM measure_record").fetchone()
        except sqlite3.OperationalError:
            return 0
        else:
            return int(count)
        finally:
            connection.close()

    def environ(self, **changes: str) -> dict[str, str]:
        """Return the environment of commands; see :func:`environ_of`."""
        return {**environ_of(self.folder), **self.settings, **changes}

    def start(self, *args: str, **environ: str) -> Process:
        """Start a command in a process group of its own."""
        return start(("tuner", *args), self.environ(**environ), self.folder)

    def __call__(self, *args: str, **environ: str) -> Answer:
        """Run a command to its end."""
        variables = self.environ(**environ)
        return finish(start(("tuner", *args), variables, self.folder, waits=False))

    @staticmethod
    def workers_of(process: Process) -> list[psutil.Process]:
        """The children of a command that are workers, and not processes that these started."""
        workers = []
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if child.name() == worker_process.NAME:
                        workers.append(child)
        return workers


def start(
    program: tuple[str, ...],
    variables: Mapping[str, str],
    folder: Path,
    log: IO[Any] | None = None,
    *,
    waits: bool = True,
) -> Process:
    """Start ``python -m`` with a module and its arguments, in a process group of its own.

    It is forked where that makes no difference. Its output goes to a log if it has one.
    """
    if (server := fork_server(ROOT)).fits(variables):
        return server.start(program, variables, folder, log, waits=waits)
    return subprocess.Popen(
        [sys.executable, "-m", *program],
        env=variables,
        cwd=folder,
        stdout=log or subprocess.PIPE,
        stderr=log or subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def finish(process: Process, timeout_secs: float = _TIMEOUT_SECS) -> Answer:
    """Wait for a command; one that hangs is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=timeout_secs)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):  # it may have ended just now
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return Answer(process.wait(), out, err)
