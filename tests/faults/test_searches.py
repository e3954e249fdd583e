"""Searches that fail always, once, or find nothing."""

import pytest

from tests.faults.conftest import Hall


@pytest.mark.parametrize("fault", ["kill", "escape"])
def test_search_that_always_fails_is_a_failure_with_a_reason(hall: Hall, fault: str) -> None:
    """A job in which no search ever worked is a failure of the work, not a finished job."""
    hall.control.inject(propose=[{"fault": fault}])
    job = hall.job_of("one", 8)

    failures = hall.run(job).failures

    assert "search" in str(failures[job.job_id])
    assert hall.job(job.job_id).state == "failed"
    assert hall.trials() == []


def test_search_that_failed_is_tried_again_by_the_next_run(hall: Hall) -> None:
    """A task whose search workers were killed is searched again."""
    hall.control.inject(propose=[{"fault": "kill"}])
    hall.run(hall.job_of("one", 8))
    hall.control.inject()
    job = hall.job_of("one", 8)

    hall.run(job)

    hall.check_whole(job, trials=8)


def test_search_that_finds_nothing_exhausts_its_task(hall: Hall) -> None:
    """A space without candidates ends the job without a trial, and without an endless loop."""
    hall.control.inject(propose=[{"fault": "no_candidates"}])
    job = hall.job_of("one", 8)

    hall.run(job)

    assert hall.trials() == []
    assert hall.job(job.job_id).state == "done"
