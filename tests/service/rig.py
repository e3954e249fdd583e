"""Workers of the service as processes, most with the toy engine."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from records import database
from records.models import Event, Job, MeasureRecord, Pick
from records.service import builds, workers
from records.service.service_models import Build, Worker
from records.tuning import events
from tests.cli import ROOT, WORKER_VARIABLES, start
from tests.engines import toy
from tests.forked import Process
from tests.services import is_ready
from tests.waiting import wait_for
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.jobs.submission import submit_request
from tuner.service.supervisor import free_port

HOST = "127.0.0.1"
T = TypeVar("T")


@dataclass
class Rig:
    """A database and processes that work on it, with the toy engine or the real one.

    Those that wait do as the processes of users, see :meth:`tests.forked.ForkServer.start`.
    """

    url: str
    folder: Path
    run_secs: float = 0.0
    is_toy: bool = True
    waits: bool = False
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = database.open_database(self.url)
        self.sessions = database.sessions(self.engine)

    def start(self, name: str = "data", *args: str, **environ: str) -> Process:
        """Start a worker with a named data directory, and a log in the folder above.

        It is on the same machine as others, unless it has a ``TUNER_RUNTIME_DIR`` of its own.
        """
        process = self.tuner("worker", "--data-dir", str(self.folder / name), *args, **environ)
        self.processes.append(process)
        return process

    def tuner(self, *args: str, **environ: str) -> Process:
        """Start a command of the command line."""
        log = self.folder / f"{args[0]}.{len(self.processes)}.log"
        return self._start(log, "tuner", *args, **environ)

    def serve(self, port: int | None = None) -> str:
        """Start an API and a worker without their supervisor; return its URL once it is ready."""
        port = port or free_port(HOST)
        places = ("--host", HOST, "--port", str(port), "--data-dir", str(self.folder / "data"))
        self.processes.append(self._start(self.folder / "api.log", "api", *places))
        self.start()
        url = f"http://{HOST}:{port}"
        wait_for(lambda: is_ready(url), 60.0)
        return url

    def _start(self, log: Path, *program: str, **environ: str) -> Process:
        with log.open("ab") as stream:
            variables = self.environ(**environ)
            return start(program, variables, self.folder, stream, waits=self.waits)

    def environ(self, **changes: str) -> dict[str, str]:
        """Return the environment of a process, without settings of the developer."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TUNER_")}
        config = self.folder / "config.toml"
        config.touch()
        engine = {"TUNER_ENGINE": toy.NAME, "TOY_RUN_SECS": str(self.run_secs)}
        return {
            **kept,
            "PYTHONPATH": str(ROOT),
            "TUNER_CONFIG": str(config),
            "TUNER_DATABASE": self.url,
            "TUNER_N_BUILDERS": "1",
            # As on a machine of its own: other tests measure at the same time.
            "TUNER_RUNTIME_DIR": str(self.folder / "locks"),
            "TUNER_WORKER_ENVIRONMENT": WORKER_VARIABLES,
            **(engine if self.is_toy else {}),
            **changes,
        }

    def logs(self) -> list[dict[str, Any]]:
        """Return every line that the processes logged."""
        lines = [
            line
            for log in sorted(self.folder.glob("*.log"))
            for line in log.read_text().splitlines()
        ]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def submit(self, model: str = "zoo:mlp", trials: int | None = 8, **options: Any) -> int:
        """Submit a job and return its id."""
        fields = {"cost_model": "random", "trials_per_round": 4, "trials": trials, **options}
        request = TuneRequest((ModelRequest(model),), TuneSpec(**fields))
        with self.sessions.begin() as session:
            return submit_request(session, request, "")[0].id

    def job(self, job_id: int) -> Job:
        """Read a job."""
        with self.sessions() as session:
            return session.get_one(Job, job_id)

    def state(self, job_id: int) -> str:
        """Read the state of a job; empty while the database is away."""
        with contextlib.suppress(OperationalError):
            return self.job(job_id).state
        return ""

    def phase(self, job_id: int) -> str:
        """Read what the coordinator reports of a job."""
        with self.sessions() as session:
            status = events.status_of(session, job_id)
        return "" if status is None else status.phase

    def n_trials(self) -> int:
        """Count the records; 0 while the database is away."""
        with contextlib.suppress(OperationalError):
            return len(self.all(MeasureRecord.id))
        return 0

    def all(self, column: Any) -> Sequence[Any]:
        """Read a column of a table, in the order of its rows."""
        with self.sessions() as session:
            return session.scalars(select(column).order_by(column)).all()

    def workers(self) -> list[Worker]:
        """Read the reports of the worker processes."""
        with self.sessions() as session:
            return workers.list_workers(session)

    def active(self) -> list[int]:
        """Return the ids of the processes that report themselves as active and have not ended."""
        active = [row for row in self.workers() if row.role == "active" and not row.stopped]
        return [row.pid for row in active if psutil.pid_exists(row.pid)]

    def build(self, job_id: int, **options: Any) -> Build:
        """Request a library, and wait for the end of its build."""
        with self.sessions.begin() as session:
            build_id = builds.request_build(session, job_id, **options).id

        def ended() -> Build | None:
            with self.sessions() as session:
                build = builds.get_build(session, build_id)
            return build if build.state in ("done", "failed") else None

        return wait_for(ended)

    def check_counts(self, job_id: int) -> None:
        """Check that every trial counts once, and that picks and events have no gaps."""
        with self.sessions() as session:
            counted = session.execute(
                select(Pick.id, Pick.sequence, Pick.n_measured).where(Pick.job_id == job_id)
            ).all()
            of_picks: dict[int, int] = {}
            for pick_id in session.scalars(select(MeasureRecord.pick_id)):
                if pick_id is not None:
                    of_picks[pick_id] = of_picks.get(pick_id, 0) + 1
            numbers = session.scalars(select(Event.sequence).where(Event.job_id == job_id)).all()
        sequences = sorted(sequence for _, sequence, _ in counted)
        assert sequences == list(range(1, len(sequences) + 1))
        assert {pick: n for pick, _, n in counted if n} == {
            pick: n for pick, n in of_picks.items() if pick in {row[0] for row in counted}
        }
        assert sorted(numbers) == list(range(1, len(numbers) + 1))

    def close(self) -> None:
        """Kill all processes that still run."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.engine.dispose()


@contextmanager
def rig(
    url: str, folder: Path, run_secs: float = 0.0, *, is_toy: bool = True, waits: bool = False
) -> Iterator[Rig]:
    """Open a rig, and close it in any case."""
    opened = Rig(url, folder, run_secs, is_toy, waits)
    try:
        yield opened
    finally:
        opened.close()


def serve(opened: Rig, *args: str) -> tuple[Process, str]:
    """Start ``tuner serve``, and return its process and URL once it is ready."""
    port = free_port(HOST)
    data_dir = str(opened.folder / "data")
    process = opened.tuner("serve", "--port", str(port), "--data-dir", data_dir, *args)
    opened.processes.append(process)
    url = f"http://{HOST}:{port}"
    wait_for(lambda: f"Serving on {url}" in (opened.folder / "serve.0.log").read_text(), 60.0)
    return process, url


def get(url: str, path: str) -> httpx.Response:
    """Send a request to the API."""
    return httpx.get(url + path, timeout=20.0, trust_env=False, verify=False)
