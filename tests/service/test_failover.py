"""Two workers on one database, and a database that goes away: nothing is lost or counted twice."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from records.models import MeasureRecord
from tests.service.rig import Rig, rig, wait_for

_TRIALS = 48


def check_done(opened: Rig, job: int) -> None:
    """The job ended with its budget, each trial once."""
    wait_for(lambda: opened.state(job) == "done", 60.0)
    assert len(opened.all(MeasureRecord.id)) == _TRIALS
    opened.check_counts(job)


@pytest.mark.parametrize(
    "url", [pytest.param("sqlite", marks=pytest.mark.slow), "postgresql"], indirect=True
)
def test_a_standby_takes_over_from_a_worker_that_is_killed(url: str, tmp_path: Path) -> None:
    """One of two is active; within 15 seconds of its end the other is, and the job is done."""
    with rig(url, tmp_path, run_secs=0.05) as opened:
        job = opened.submit(trials=_TRIALS)
        pair = [opened.start(), opened.start()]
        wait_for(lambda: len(opened.workers()) == 2 and opened.n_trials() >= 4)
        (active,) = opened.active()
        (other,) = {each.pid for each in pair} - {active}
        children = psutil.Process(active).children(recursive=True)

        os.kill(active, signal.SIGKILL)
        killed = time.monotonic()
        next(each for each in pair if each.pid == active).wait()
        wait_for(lambda: opened.active() == [other], 15.0 - (time.monotonic() - killed))

        check_done(opened, job)
        assert opened.active() == [other]
        assert not psutil.wait_procs(children, 5.0)[1]


def test_a_worker_that_slept_through_its_lease_writes_nothing(
    postgres_url: str, tmp_path: Path
) -> None:
    """It was stopped in the middle of a round, on a machine of its own, and stands by after.

    Not with SQLite: a process that is stopped in a transaction keeps the file locked.
    """
    with rig(postgres_url, tmp_path, run_secs=0.05) as opened:
        job = opened.submit(trials=_TRIALS)
        sleeper = opened.start("one")
        wait_for(lambda: opened.n_trials() >= 4)
        opened.start("two")

        os.kill(sleeper.pid, signal.SIGSTOP)
        wait_for(lambda: sleeper.pid not in opened.active() or len(opened.active()) == 2, 15.0)
        before = opened.n_trials()
        wait_for(lambda: opened.n_trials() > before)
        os.kill(sleeper.pid, signal.SIGCONT)
        wait_for(lambda: any("standing by again" in line["message"] for line in opened.logs()))

        check_done(opened, job)
        lost = [line for line in opened.logs() if "another process is coordinator" in str(line)]
        assert lost
        assert sleeper.pid not in opened.active()


def test_a_job_outlives_its_database(own_postgres: Any, tmp_path: Path) -> None:
    """PostgreSQL stops in the middle of a round and starts seconds later."""
    with rig(own_postgres.get_uri(), tmp_path, run_secs=0.05) as opened:
        job = opened.submit(trials=_TRIALS)
        opened.start()
        wait_for(lambda: opened.n_trials() >= 4)

        own_postgres.stop()
        time.sleep(2.0)
        own_postgres.start()

        check_done(opened, job)
