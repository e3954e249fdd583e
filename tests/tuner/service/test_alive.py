"""Health check of a container with a worker."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session, sessionmaker

from records import database
from records.models import now
from records.service import workers
from records.service.service_models import Worker
from tuner.service.alive import LIVENESS, find_trouble
from tuner.settings import Settings, read_settings

ROOT = Path(__file__).parents[3]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A new database."""
    return read_settings({"data_dir": tmp_path}, {"TUNER_CONFIG": ""})


@pytest.fixture
def sessions(settings: Settings) -> Iterator[sessionmaker[Session]]:
    """Sessions on that database."""
    engine = database.open_database(settings.database)
    yield database.sessions(engine)
    engine.dispose()


def report(sessions: sessionmaker[Session], host: str) -> None:
    """Report a worker of a host that stands by."""
    with sessions.begin() as session:
        standby = workers.WorkerReport(
            name=f"{host}:1", host=host, pid=1, role="standby", activity="waiting"
        )
        workers.report(session, standby)


def test_a_worker_of_this_host_is_alive(
    settings: Settings, sessions: sessionmaker[Session]
) -> None:
    """A worker with a recent heartbeat is alive in any role; those of other hosts do not count."""
    report(sessions, "here")

    assert find_trouble(settings, "here") == ""
    assert find_trouble(settings, "there") == "no worker on there has ever sent a heartbeat"


def test_a_silent_worker_is_not_alive(settings: Settings, sessions: sessionmaker[Session]) -> None:
    """A worker without a recent heartbeat is not alive, and the time of its last one is shown."""
    report(sessions, "here")
    with sessions.begin() as session:
        silent = now() - workers.OFFLINE_AFTER - timedelta(seconds=1)
        session.execute(update(Worker).values(heartbeat=silent))

    assert find_trouble(settings, "here").startswith("worker here:1 was last seen at ")


def test_a_worker_whose_main_loop_hangs_is_not_alive(
    settings: Settings, sessions: sessionmaker[Session]
) -> None:
    """A thread sends heartbeats, but nothing else happens."""
    report(sessions, "here")
    with sessions.begin() as session:
        hung = now() - timedelta(seconds=settings.max_stall_secs + 60)
        session.execute(update(Worker).values(progress=hung))

    assert find_trouble(settings, "here").startswith("worker here:1 made no progress since ")


def test_a_stopped_worker_is_not_alive(settings: Settings, sessions: sessionmaker[Session]) -> None:
    """A worker that reported its end is not alive."""
    report(sessions, "here")
    with sessions.begin() as session:
        workers.stop(session, "here:1")

    assert "here:1" in find_trouble(settings, "here")


def run_check(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the check as a container does."""
    return subprocess.run(
        [sys.executable, "-m", "tuner.service.alive", *arguments],
        env={**os.environ, "TUNER_DATABASE": url}, cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_worker_is_not_restarted_because_the_database_is_away() -> None:
    """A probe that restarts passes with the reason: a restart would not bring the database back."""
    check = run_check("postgresql://127.0.0.1:1/tuner", LIVENESS)

    assert check.returncode == 0
    assert "cannot use" in check.stderr


@pytest.mark.parametrize(("arguments", "status"), [([LIVENESS], 0), ([], 1)])
def test_a_database_that_accepts_and_does_not_answer_is_not_waited_for(
    arguments: list[str], status: int
) -> None:
    """The check ends before its probe does, which would count as a worker that hangs."""
    code = (
        "import sys; from tuner.service import alive; alive._MAX_LOOK_SECS = 0.5; "
        "sys.exit(alive.main(sys.argv[1:]))"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/tuner?connect_timeout=60"
        check = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "TUNER_DATABASE": url}, cwd=ROOT,
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip

    assert check.returncode == status
    assert check.stderr == "cannot use the database: it did not answer within 0.5 s\n"


def test_a_worker_that_hangs_is_restarted(
    settings: Settings, sessions: sessionmaker[Session]
) -> None:
    """The same probe fails where the database answers that the worker does not move."""
    report(sessions, socket.gethostname())
    assert run_check(settings.database, LIVENESS).returncode == 0
    with sessions.begin() as session:
        hung = now() - timedelta(seconds=settings.max_stall_secs + 60)
        session.execute(update(Worker).values(progress=hung))

    assert run_check(settings.database, LIVENESS).returncode == 1


@pytest.mark.parametrize("url", ["sqlite:////dev/null/tuner.db", "mysql://localhost/tuner"])
def test_no_database_is_trouble(url: str) -> None:
    """The check exits with status 1 and one line of explanation, without a stack trace."""
    check = run_check(url)
    assert check.returncode == 1
    assert len(check.stderr.splitlines()) == 1
    assert "cannot use" in check.stderr
