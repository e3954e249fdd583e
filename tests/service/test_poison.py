"""A job that kills the worker's process."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from records import attempts
from tests.engines import toy
from tests.service.rig import Rig, rig, wait_for


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
