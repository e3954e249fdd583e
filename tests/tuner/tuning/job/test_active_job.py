"""Jobs of a coordinator: how often a full disk may end their rounds."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from tuner.tuning.job.active_job import ActiveJob

if TYPE_CHECKING:
    from tuner.tuning.session import TuningSession


def new_job() -> ActiveJob:
    """Return a job whose session does nothing."""
    session = SimpleNamespace(job_id=1, target_id=1, owner=None)
    return ActiveJob(cast("TuningSession", session), 0.0)


def test_rounds_that_end_together_count_once() -> None:
    """Four rounds were under way when a disk was full for a moment, and two more fail later."""
    job = new_job()

    assert [job.is_stuck(0.0, 1.0 + n / 10) for n in range(4)] == [False] * 4
    assert not job.is_stuck(2.0, 3.0)
    assert job.is_stuck(4.0, 5.0)


def test_a_full_disk_of_long_ago_does_not_count() -> None:
    """A job that runs for days may meet one now and then."""
    job = new_job()

    assert not any(job.is_stuck(1000.0 * n, 1000.0 * n + 1) for n in range(10))
