"""A job that kills the worker's process."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from records.tuning import attempts
from tests.engines import toy
from tests.service.rig import Rig, rig
from tests.waiting import wait_for


def has_attempts(service: Rig, job_id: int, n_attempts: int) -> bool:
    """Return whether a job has this number of attempts without an end."""
    return service.job(job_id).attempts == n_attempts


@pytest.mark.slow("three workers die, and the lease of each expires after ten seconds")
def test_the_job_behind_a_poisonous_one_runs(tmp_path: Path) -> None:
    """The third death quarantines the job, the next job is done, and a release tries again."""
    with rig(f"sqlite:///{tmp_path / 'tuner.db'}", tmp_path) as service:
        poison = service.submit(f"zoo:mlp?batch={toy.SLOW_BATCH}")
        for n_deaths in range(attempts.MAX_DEATHS):
            worker = service.start(TOY_SPLIT_SECS="600")
            wait_for(partial(has_attempts, service, poison, n_deaths + 1), 60.0)
            if n_deaths == 1:
                other = service.submit("zoo:mlp?batch=2")
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait()
        service.start(TOY_SPLIT_SECS="0")

        wait_for(lambda: service.state(other) == "done", 60.0)
        job = service.job(poison)
        assert (job.state, job.quarantined) == ("failed", True)
        assert "died 3 times while loading the model" in (job.message or "")

        with service.sessions.begin() as session:
            attempts.release(session, poison)
        wait_for(lambda: service.state(poison) == "done", 60.0)


@pytest.mark.slow("a minute: the database is away three times")
def test_outages_of_the_database_are_not_deaths(own_postgres: Any, tmp_path: Path) -> None:
    """The process that lived through three of them in a load takes its attempts back."""
    with rig(own_postgres.get_uri(), tmp_path) as service:
        job = service.submit(f"zoo:mlp?batch={toy.SLOW_BATCH}")
        service.start(TOY_SPLIT_SECS="600")

        def n_loads() -> int:
            return sum(line["message"] == "loading the model" for line in service.logs())

        def n_ends() -> int:
            return sum(line["message"].startswith("standing by again") for line in service.logs())

        for n_outages in range(attempts.MAX_DEATHS + 1):
            wait_for(lambda n=n_outages: n_loads() > n, 60.0)  # type: ignore[misc]
            assert has_attempts(service, job, 1)
            if n_outages < attempts.MAX_DEATHS:
                before = n_ends()
                own_postgres.stop()
                # A shorter outage between two queries is not noticed.
                wait_for(lambda n=before: n_ends() > n, 60.0)  # type: ignore[misc]
                own_postgres.start()

        assert service.state(job) == "running"
        assert not service.job(job).quarantined
