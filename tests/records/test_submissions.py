"""A submission is one job, however often it is asked for."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from records import events, jobs, submissions
from records.errors import KeyReused, NoSuchRow
from records.models import JobState
from records.submissions import Submission
from tests.records import make

DAY = timedelta(days=1)


def wanted(submission: str = "s0", **changes: Any) -> Submission:
    """Ask for ten trials on a network."""
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
    """The same again is the same job; another is another."""
    first, is_new = submissions.submit(session, wanted())
    again, is_again = submissions.submit(session, wanted())
    other, _ = submissions.submit(session, wanted("s1"))

    assert (is_new, is_again) == (True, False)
    assert first.id == again.id != other.id
    assert [job.id for job in submissions.waiting(session)] == [first.id, other.id]
    assert [e.kind for e in events.events_after(session, first.id, 0)] == ["state"]


@pytest.mark.parametrize("state", ["running", "paused", "failed", "cancelled", "done"])
def test_asking_for_tasks_leaves_a_job_that_has_them(session: Session, state: JobState) -> None:
    """A build or a list of tasks changes neither budget nor priority, and restarts nothing."""
    job, _ = submissions.submit(
        session, wanted(budget_trials=None, budget_secs=60.0, priority=2, name="mine")
    )
    submissions.assign(session, job.id, make.network(session), make.target(session), {})
    jobs.set_state(session, job.id, state)

    again, is_new = submissions.submit(session, wanted(budget_trials=0))

    assert (again.id, is_new, again.state) == (job.id, False, state)
    assert (again.budget_trials, again.budget_secs) == (None, 60.0)
    assert (again.priority, again.name) == (2, "mine")


def test_asking_for_tasks_again_tries_again(session: Session) -> None:
    """A network that could not be split may be one that can be now."""
    job, _ = submissions.submit(session, wanted(budget_trials=0))
    jobs.set_state(session, job.id, "failed")

    assert submissions.submit(session, wanted(budget_trials=0))[0].state == "queued"


def test_a_network_that_was_only_split_is_tuned_for_some_time(session: Session) -> None:
    """No trials at all was its limit; seconds alone are another."""
    job, _ = submissions.submit(session, wanted(budget_trials=0))
    jobs.set_state(session, job.id, "done")

    again, _ = submissions.submit(session, wanted(budget_trials=None, budget_secs=60.0))

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
def test_asking_again(session: Session, state: JobState, trials: int, becomes: str) -> None:
    """More to spend restarts a job that is done, and anything one that was stopped."""
    job, _ = submissions.submit(session, wanted())
    jobs.set_state(session, job.id, state)

    again, _ = submissions.submit(session, wanted(budget_trials=trials, priority=3, name="m"))

    assert again.state == becomes
    assert again.budget_trials == max(10, trials)
    assert (again.priority, again.name) == (3, "m")


def test_asking_again_tells_of_what_it_changed(session: Session) -> None:
    """Watchers see new limits and a new priority; what was not given stays, and is no news."""
    job, _ = submissions.submit(session, wanted(priority=2))

    submissions.submit(session, wanted(priority=None))
    submissions.submit(session, wanted(budget_trials=20, priority=3))
    submissions.submit(session, wanted(budget_trials=20, priority=3))

    told = [(event.kind, event.data) for event in events.events_after(session, job.id, 1)]
    assert told == [("budget", {"trials": 20, "seconds": None}), ("priority", {"priority": 3})]
    assert job.priority == 3


@pytest.mark.parametrize(
    ("before", "after", "becomes"),
    [
        (1e-3, 1e-4, "queued"),
        (1e-3, None, "queued"),
        (1e-3, 1e-3, "done"),
        (None, 1e-3, "done"),
    ],
)
def test_another_gain_to_stop_at_lets_a_job_go_on(
    session: Session, before: float | None, after: float | None, becomes: str
) -> None:
    """One that stopped early may have trials left; one that spent them all is done."""
    job, _ = submissions.submit(session, wanted(request={"least_gain_secs": before}))
    jobs.set_state(session, job.id, "done")

    again, _ = submissions.submit(session, wanted(request={"least_gain_secs": after}))

    assert again.state == becomes


def test_a_job_gets_its_network_later(session: Session) -> None:
    """It is found by the key of its network from then on."""
    job, _ = submissions.submit(session, wanted())
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


def test_a_deleted_job_is_gone_until_it_is_asked_for(session: Session) -> None:
    """One that is at work is not deleted."""
    job, _ = submissions.submit(session, wanted())
    assert not submissions.hide(session, job.id)
    jobs.set_state(session, job.id, "cancelled")
    assert submissions.hide(session, job.id)

    with pytest.raises(NoSuchRow):
        jobs.get_job(session, job.id)
    assert jobs.list_jobs(session) == []
    again, _ = submissions.submit(session, wanted())
    assert (again.id, again.state) == (job.id, "queued")
    assert jobs.get_job(session, job.id) is again


@pytest.mark.parametrize(("state", "resumed"), [("paused", True), ("done", False)])
def test_only_what_was_stopped_resumes(session: Session, state: JobState, resumed: bool) -> None:
    """A job that is done has nothing to go on with."""
    job, _ = submissions.submit(session, wanted())
    jobs.set_state(session, job.id, state)

    assert submissions.resume(session, job.id) is resumed


def test_a_key_stands_for_one_request(session: Session) -> None:
    """A retry finds its job; the same key with another request is an error."""
    job, _ = submissions.submit(session, wanted())
    assert submissions.job_of_key(session, "ci", "k", "f", DAY) is None
    assert submissions.keep_key(session, "ci", "k", "f", job.id) == job.id

    assert submissions.job_of_key(session, "ci", "k", "f", DAY) == job.id
    assert submissions.job_of_key(session, "somebody else", "k", "other", DAY) is None
    with pytest.raises(KeyReused, match="another request"):
        submissions.job_of_key(session, "ci", "k", "other", DAY)
    with pytest.raises(KeyReused, match="another request"):
        submissions.keep_key(session, "ci", "k", "other", job.id)


def test_keys_are_forgotten(session: Session) -> None:
    """One that is too old stands for nothing."""
    job, _ = submissions.submit(session, wanted())
    submissions.keep_key(session, "ci", "k", "f", job.id)

    assert submissions.job_of_key(session, "ci", "k", "other", timedelta(seconds=-1)) is None


def test_a_job_that_is_deleted_while_it_is_loaded_stays_deleted(session: Session) -> None:
    """Opening it for its session is not asking for it again."""
    job, _ = submissions.submit(session, wanted())
    network_id, target_id = make.network(session), make.target(session)
    submissions.assign(session, job.id, network_id, target_id, {})
    jobs.set_state(session, job.id, "cancelled")
    submissions.hide(session, job.id)

    make.job(session, objective="weighted_sum", submission="s0")

    with pytest.raises(NoSuchRow):
        jobs.get_job(session, job.id)
