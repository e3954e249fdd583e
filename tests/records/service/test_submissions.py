"""Equal submissions are one job."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from records import jobs
from records.errors import KeyReused, NoSuchRow
from records.models import JobState
from records.service import submissions
from records.service.submissions import Submission
from records.tuning import events
from tests.records import make

DAY = timedelta(days=1)


def submission_of(submission: str = "s0", **changes: Any) -> Submission:
    """Request ten trials on a network."""
    fields: dict[str, Any] = {
        "request": {"models": ["zoo:mlp"]},
        "objective": "weighted_sum",
        "seed": 0,
        "budget_trials": 10,
        "budget_secs": None,
        "priority": 0,
        "name": "mlp",
    }
    return Submission(submission=submission, **fields | changes)


def test_a_submission_is_queued_once(session: Session) -> None:
    """Equal submissions are the same job, different ones are not."""
    first, is_new = submissions.submit(session, submission_of())
    again, is_again = submissions.submit(session, submission_of())
    other, _ = submissions.submit(session, submission_of("s1"))

    assert (is_new, is_again) == (True, False)
    assert first.id == again.id != other.id
    assert [job.id for job in submissions.claimable(session)] == [first.id, other.id]
    assert [e.kind for e in events.events_after(session, first.id, 0)] == ["state"]


@pytest.mark.parametrize("state", ["running", "paused", "failed", "cancelled", "done"])
def test_a_request_for_tasks_keeps_a_job_that_has_them(session: Session, state: JobState) -> None:
    """Neither budget nor priority changes, and nothing is restarted."""
    job, _ = submissions.submit(
        session, submission_of(budget_trials=None, budget_secs=60.0, priority=2, name="mine")
    )
    submissions.assign(session, job.id, make.network(session), make.target(session), {})
    jobs.set_state(session, job.id, state)

    again, is_new = submissions.submit(session, submission_of(budget_trials=0))

    assert (again.id, is_new, again.state) == (job.id, False, state)
    assert (again.budget_trials, again.budget_secs) == (None, 60.0)
    assert (again.priority, again.name) == (2, "mine")


def test_a_repeated_request_for_tasks_tries_again(session: Session) -> None:
    """A failed extraction is queued again."""
    job, _ = submissions.submit(session, submission_of(budget_trials=0))
    jobs.set_state(session, job.id, "failed")

    assert submissions.submit(session, submission_of(budget_trials=0))[0].state == "queued"


def test_a_job_with_tasks_only_is_tuned_by_a_time_limit(session: Session) -> None:
    """A limit of zero trials is lifted by a request with seconds only."""
    job, _ = submissions.submit(session, submission_of(budget_trials=0))
    jobs.set_state(session, job.id, "done")

    again, _ = submissions.submit(session, submission_of(budget_trials=None, budget_secs=60.0))

    assert (again.state, again.budget_trials, again.budget_secs) == ("queued", None, 60.0)


@pytest.mark.parametrize(
    ("state", "trials", "becomes"),
    [
        ("running", 20, "running"),
        ("done", 10, "done"),  # what is known already is the answer
        ("done", 5, "done"),
        ("done", 20, "queued"),
        ("failed", 10, "queued"),
        ("cancelled", 10, "queued"),
        ("paused", 10, "queued"),
    ],
)
def test_submitting_again_restarts(
    session: Session, state: JobState, trials: int, becomes: str
) -> None:
    """A larger budget restarts a done job, and any submission a stopped one."""
    job, _ = submissions.submit(session, submission_of())
    jobs.set_state(session, job.id, state)

    again, _ = submissions.submit(
        session, submission_of(budget_trials=trials, priority=3, name="m")
    )

    assert again.state == becomes
    assert again.budget_trials == max(10, trials)
    assert (again.priority, again.name) == (3, "m")


def test_submitting_again_adds_events_for_changes(session: Session) -> None:
    """New limits and a new priority are events; omitted values stay."""
    job, _ = submissions.submit(session, submission_of(priority=2))

    submissions.submit(session, submission_of(priority=None))
    submissions.submit(session, submission_of(budget_trials=20, priority=3))
    submissions.submit(session, submission_of(budget_trials=20, priority=3))

    changes = [(event.kind, event.data) for event in events.events_after(session, job.id, 1)]
    assert changes == [("budget", {"trials": 20, "seconds": None}), ("priority", {"priority": 3})]
    assert job.priority == 3


@pytest.mark.parametrize(
    ("before", "after", "becomes"),
    [
        (1.0, 0.1, "queued"),
        (1.0, None, "queued"),
        (1.0, 1.0, "done"),
        (None, 1.0, "done"),
    ],
)
def test_another_threshold_of_gain_restarts_a_job(
    session: Session, before: float | None, after: float | None, becomes: str
) -> None:
    """A job that stopped early may have trials left."""
    job, _ = submissions.submit(session, submission_of(request={"stop_below_ms": before}))
    jobs.set_state(session, job.id, "done")

    again, _ = submissions.submit(session, submission_of(request={"stop_below_ms": after}))

    assert again.state == becomes


@pytest.mark.parametrize(
    ("request_", "secs"),
    [
        ({"stop_below_ms": 0.25}, 0.25e-3),
        ({"stop_below_ms": None}, None),
        ({}, None),
        (None, None),
    ],
)
def test_gain_to_stop_at_is_read_from_the_request(
    request_: dict[str, Any] | None, secs: float | None
) -> None:
    """Milliseconds in the request, seconds for the scheduler."""
    assert submissions.stop_below_secs(request_) == secs


def test_a_job_gets_its_network_later(session: Session) -> None:
    """The job is then identified by the key of its network, too."""
    job, _ = submissions.submit(session, submission_of())
    network_id, target_id = make.network(session), make.target(session)
    submissions.assign(session, job.id, network_id, target_id, {"goal": {}})

    opened = jobs.open_job(
        session,
        jobs.NewJob(
            network_id=network_id,
            target_id=target_id,
            objective="weighted_sum",
            seed=0,
            submission="s0",
        ),
    )

    assert opened.id == job.id
    assert opened.budget_trials == 10


def test_a_deleted_job_is_hidden_until_submitted_again(session: Session) -> None:
    """A running job cannot be deleted."""
    job, _ = submissions.submit(session, submission_of())
    assert not submissions.hide(session, job.id)
    jobs.set_state(session, job.id, "cancelled")
    assert submissions.hide(session, job.id)

    with pytest.raises(NoSuchRow):
        jobs.get_job(session, job.id)
    assert jobs.count_by_state(session) == {}
    again, _ = submissions.submit(session, submission_of())
    assert (again.id, again.state) == (job.id, "queued")
    assert jobs.get_job(session, job.id) is again


@pytest.mark.parametrize(("state", "resumed"), [("paused", True), ("done", False)])
def test_only_stopped_jobs_resume(session: Session, state: JobState, resumed: bool) -> None:
    """A done job cannot be resumed."""
    job, _ = submissions.submit(session, submission_of())
    jobs.set_state(session, job.id, state)

    assert submissions.resume(session, job.id) is resumed


def test_a_key_belongs_to_one_request(session: Session) -> None:
    """A retry gets the same job; another request with the key is an error."""
    job, _ = submissions.submit(session, submission_of())
    assert submissions.job_of_key(session, "ci", "k", "f", DAY) is None
    assert submissions.keep_key(session, "ci", "k", "f", job.id) == job.id

    assert submissions.job_of_key(session, "ci", "k", "f", DAY) == job.id
    assert submissions.job_of_key(session, "another", "k", "other", DAY) is None
    with pytest.raises(KeyReused, match="another request"):
        submissions.job_of_key(session, "ci", "k", "other", DAY)
    with pytest.raises(KeyReused, match="another request"):
        submissions.keep_key(session, "ci", "k", "other", job.id)


def test_old_keys_are_deleted(session: Session) -> None:
    """A key beyond its lifetime can be used again."""
    job, _ = submissions.submit(session, submission_of())
    submissions.keep_key(session, "ci", "k", "f", job.id)

    assert submissions.job_of_key(session, "ci", "k", "other", timedelta(seconds=-1)) is None


def test_a_job_that_is_deleted_while_it_is_loaded_stays_deleted(session: Session) -> None:
    """Opening it for its session does not show it again."""
    job, _ = submissions.submit(session, submission_of())
    network_id, target_id = make.network(session), make.target(session)
    submissions.assign(session, job.id, network_id, target_id, {})
    jobs.set_state(session, job.id, "cancelled")
    submissions.hide(session, job.id)

    make.job(session, objective="weighted_sum", submission="s0")

    with pytest.raises(NoSuchRow):
        jobs.get_job(session, job.id)
