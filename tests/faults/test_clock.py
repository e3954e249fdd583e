"""Clocks that jump in the middle of a job.

With SQLite, leases and heartbeats use the clock of the machine: the worst case.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from records.models import MeasureRecord, now
from tests.cli import ROOT
from tests.service.rig import Rig, rig
from tests.waiting import wait_for

_TRIALS = 40
_HOUR = 3600.0


class Clock:
    """The clock of all processes that a rig starts with these environment variables."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "offset"
        path = f"{Path(__file__).with_name('clock')}{os.pathsep}{ROOT}"
        self.environ = {"CLOCK_OFFSET": str(self._file), "PYTHONPATH": path}

    def jump(self, secs: float) -> None:
        """Shift the clock by a number of seconds."""
        partial = self._file.with_suffix(".partial")
        partial.write_text(str(secs))
        partial.rename(self._file)


@pytest.mark.parametrize(
    "secs",
    [
        pytest.param(_HOUR, marks=[pytest.mark.slow("20 s of tuning"), pytest.mark.in_ci]),
        pytest.param(-_HOUR, marks=pytest.mark.slow("30 s until leases expire")),
    ],
)
def test_job_outlives_a_jump_of_the_clock(tmp_path: Path, secs: float) -> None:
    """The holder of the lease finishes the job, and its seconds are those that passed."""
    clock = Clock(tmp_path)
    with rig(f"sqlite:///{tmp_path / 'tuner.db'}", tmp_path, run_secs=0.05) as opened:
        began = time.monotonic()
        job = opened.submit(trials=_TRIALS)
        for name in ("one", "two"):
            opened.start(name, **clock.environ)
        wait_for(lambda: opened.n_trials() >= 4, 120.0)

        clock.jump(secs)

        wait_for(lambda: opened.state(job) == "done", 120.0)
        check(opened, job, time.monotonic() - began)


@pytest.mark.in_ci
@pytest.mark.slow("30 s: a lease has to expire")
def test_standby_takes_over_although_the_clock_was_set_back(tmp_path: Path) -> None:
    """A lease that would expire in an hour of the new clock expires in ten seconds."""
    clock = Clock(tmp_path)
    with rig(f"sqlite:///{tmp_path / 'tuner.db'}", tmp_path, run_secs=0.05) as opened:
        job = opened.submit(trials=_TRIALS)
        began = time.monotonic()
        active = opened.start("one", **clock.environ)
        wait_for(lambda: opened.n_trials() >= 4, 120.0)
        os.kill(active.pid, signal.SIGKILL)
        active.wait()
        clock.jump(-_HOUR)

        opened.start("two", **clock.environ)

        wait_for(lambda: opened.state(job) == "done", 120.0)
        check(opened, job, time.monotonic() - began)


def check(opened: Rig, job: int, max_secs: float) -> None:
    """Check that each trial counts once, and that time went forward although the clock jumped."""
    assert len(opened.all(MeasureRecord.id)) == _TRIALS
    opened.check_counts(job)
    assert 0.0 < opened.job(job).spent_secs <= max_secs
    assert opened.processes[-1].poll() is None
    pid = opened.processes[-1].pid
    heartbeats = [worker.heartbeat for worker in opened.workers() if worker.pid == pid]
    assert abs((heartbeats[0] - now()).total_seconds()) > _HOUR / 2
