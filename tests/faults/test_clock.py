"""Clocks that are set forward or back in the middle of a job.

With SQLite leases go by the clock of the machine, and so do heartbeats: this is the worst case.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from records.models import MeasureRecord, now
from tests.cli import ROOT
from tests.faults.conftest import Place
from tests.service.rig import Rig, rig, wait_for

_TRIALS = 40
_HOUR = 3600.0


class Clock:
    """The clock of all processes that a rig starts with its variables."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "offset"
        path = f"{Path(__file__).with_name('clock')}{os.pathsep}{ROOT}"
        self.environ = {"CLOCK_OFFSET": str(self._file), "PYTHONPATH": path}

    def jump(self, secs: float) -> None:
        """Set the clock by so many seconds against ours."""
        partial = self._file.with_suffix(".partial")
        partial.write_text(str(secs))
        partial.rename(self._file)


@pytest.mark.parametrize(
    ("place", "trials", "secs"),
    [
        ("local", _TRIALS, _HOUR),
        pytest.param("ray", 10 * _TRIALS, _HOUR, marks=pytest.mark.slow),
        pytest.param("local", _TRIALS, -_HOUR, marks=pytest.mark.slow),
        pytest.param("ray", 10 * _TRIALS, -_HOUR, marks=pytest.mark.slow),
    ],
    indirect=["place"],
)
def test_job_outlives_a_jump_of_the_clock(
    place: Place, tmp_path: Path, trials: int, secs: float
) -> None:
    """Whoever has the lease then finishes the job, and its seconds are those that passed."""
    clock = Clock(tmp_path)
    with rig(f"sqlite:///{tmp_path / 'tuner.db'}", tmp_path, run_secs=0.05) as opened:
        began = time.monotonic()
        job = opened.submit(trials=trials)
        for name in ("one", "two"):
            opened.start(name, **clock.environ, **place.environ)
        wait_for(lambda: opened.n_trials() >= 4, 60.0)

        clock.jump(secs)

        wait_for(lambda: opened.state(job) == "done", 60.0)
        check(opened, job, trials, time.monotonic() - began)


def test_standby_takes_over_although_the_clock_was_set_back(tmp_path: Path) -> None:
    """A lease that was to end in an hour from now ends in ten seconds."""
    clock = Clock(tmp_path)
    with rig(f"sqlite:///{tmp_path / 'tuner.db'}", tmp_path, run_secs=0.05) as opened:
        job = opened.submit(trials=_TRIALS)
        began = time.monotonic()
        active = opened.start("one", **clock.environ)
        wait_for(lambda: opened.n_trials() >= 4, 60.0)
        os.kill(active.pid, signal.SIGKILL)
        active.wait()
        clock.jump(-_HOUR)

        opened.start("two", **clock.environ)

        wait_for(lambda: opened.state(job) == "done", 60.0)
        check(opened, job, _TRIALS, time.monotonic() - began)


def check(opened: Rig, job: int, trials: int, most_secs: float) -> None:
    """The job has its trials, each once; time went forward, although the clock was moved."""
    assert len(opened.all(MeasureRecord.id)) == trials
    opened.check_counts(job)
    assert 0.0 < opened.job(job).spent_secs <= most_secs
    assert opened.processes[-1].poll() is None
    heard = [each.heartbeat for each in opened.workers() if each.pid == opened.processes[-1].pid]
    assert abs((heard[0] - now()).total_seconds()) > _HOUR / 2
