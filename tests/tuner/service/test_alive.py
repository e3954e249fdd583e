"""What a container's health check hears of a worker."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session, sessionmaker

from records import database, workers
from records.models import now
from records.service_models import Worker
from tuner.service.alive import find_trouble
from tuner.settings import Settings, read_settings

ROOT = Path(__file__).parents[3]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A new database."""
    return read_settings({"data_dir": tmp_path}, {"TUNER_CONFIG": ""})


@pytest.fixture
def sessions(settings: Settings) -> Iterator[sessionmaker[Session]]:
    """Sessions on it, to report with."""
    engine = database.open_database(settings.database)
    yield database.sessions(engine)
    engine.dispose()


def report(sessions: sessionmaker[Session], host: str) -> None:
    """Let a standby on a host say that it is alive."""
    with sessions.begin() as session:
        said = workers.WorkerReport(
            name=f"{host}:1", host=host, pid=1, role="standby", activity="waiting"
        )
        workers.report(session, said)


def test_a_worker_of_this_host_is_alive(
    settings: Settings, sessions: sessionmaker[Session]
) -> None:
    """One that reported a moment ago is well, whatever its role; other hosts do not count."""
    report(sessions, "here")

    assert find_trouble(settings, "here") == ""
    assert find_trouble(settings, "there") == "no worker on there has ever reported"


def test_a_silent_worker_is_not(settings: Settings, sessions: sessionmaker[Session]) -> None:
    """One that reported too long ago is in trouble, and the time is told."""
    report(sessions, "here")
    with sessions.begin() as session:
        silent = now() - workers.OFFLINE_AFTER - timedelta(seconds=1)
        session.execute(update(Worker).values(heartbeat=silent))

    assert find_trouble(settings, "here").startswith("worker here:1 was last heard of at ")


def test_a_stopped_worker_is_not(settings: Settings, sessions: sessionmaker[Session]) -> None:
    """One that said goodbye is not alive."""
    report(sessions, "here")
    with sessions.begin() as session:
        workers.stop(session, "here:1")

    assert "here:1" in find_trouble(settings, "here")


@pytest.mark.parametrize("url", ["sqlite:////dev/null/tuner.db", "mysql://localhost/tuner"])
def test_no_database_is_trouble(url: str) -> None:
    """Exit status 1 and one line that says why, never a stack trace."""
    tried = subprocess.run(
        [sys.executable, "-m", "tuner.service.alive"],
        env={**os.environ, "TUNER_DATABASE": url}, cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert tried.returncode == 1
    assert len(tried.stderr.splitlines()) == 1
    assert "cannot use" in tried.stderr
