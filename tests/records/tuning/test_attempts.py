"""Attempts at work, and its quarantine."""

import pytest
from sqlalchemy.orm import Session

from records import jobs, measure_records, picks
from records.models import Job, Pick
from records.service import builds, submissions
from records.tuning import attempts, events
from tests.records import make
from tests.records.service.test_submissions import submission_of


@pytest.fixture
def job_id(session: Session) -> int:
    """A job of the service."""
    return submissions.submit(session, submission_of())[0].id


def attempts_at(session: Session, job_id: int) -> int:
    """Read the attempts at a job."""
    return session.get_one(Job, job_id, populate_existing=True).attempts


def test_attempts_without_an_end_add_up(session: Session, job_id: int) -> None:
    """An end takes its own attempt back, or all of them; there are never less than none."""
    counted = []
    for begins in (True, True, False, True, False, False, False):
        (attempts.begin_job if begins else attempts.end_job)(session, job_id)
        counted.append(attempts_at(session, job_id))
    assert counted == [1, 2, 1, 2, 1, 0, 0]

    attempts.begin_job(session, job_id)
    attempts.begin_job(session, job_id)
    attempts.end_job(session, job_id, clear=True)
    assert attempts_at(session, job_id) == 0


def test_a_quarantined_job_waits_for_its_release(session: Session, job_id: int) -> None:
    """Neither its owner's next request nor a resumption runs it; a release does, from scratch."""
    for _ in range(attempts.MAX_DEATHS):
        attempts.begin_job(session, job_id)
    attempts.quarantine_job(session, job_id, "loading the model")

    job, is_new = submissions.submit(session, submission_of(budget_trials=99))
    assert (is_new, job.state, job.quarantined) == (False, "failed", True)
    assert "died 3 times while loading the model" in (job.message or "")
    assert not submissions.resume(session, job_id)
    assert submissions.claimable(session) == []

    assert attempts.release(session, job_id)
    assert (job.state, job.message, job.quarantined, job.attempts) == ("queued", None, False, 0)
    assert not attempts.release(session, job_id)


@pytest.mark.parametrize(("by_operator", "n_attempts"), [(False, 2), (True, 0)])
def test_only_operators_lift_the_attempts_of_a_suspect(
    session: Session, job_id: int, by_operator: bool, n_attempts: int
) -> None:
    """An owner who resumes a job after each death would keep it from its quarantine."""
    for _ in range(2):
        attempts.begin_job(session, job_id)
    jobs.set_state(session, job_id, "paused")

    assert submissions.resume(session, job_id, by_operator=by_operator)
    assert attempts_at(session, job_id) == n_attempts


def test_a_quarantined_build_is_not_requested_again(session: Session, job_id: int) -> None:
    """The same request returns it; its job's release queues it, and says so in an event."""
    build = builds.request_build(session, job_id)
    attempts.quarantine_build(session, build.id)

    assert builds.waiting(session) == []
    again = builds.request_build(session, job_id)
    assert (again.id, again.state, again.quarantined) == (build.id, "failed", True)
    assert "while building the library" in (again.message or "")
    assert builds.request_build(session, job_id, strict=True).id != build.id

    assert attempts.release(session, job_id)
    assert builds.get_build(session, build.id).state == "queued"
    assert events.events_after(session, job_id, 0)[-1].data["state"] == "queued"


def test_a_second_attempt_at_a_build_counts_while_it_runs(session: Session) -> None:
    """A build that returned to the queue in between has no second attempt."""
    build_id = builds.request_build(session, make.job(session)).id
    assert not attempts.begin_again(session, build_id)

    builds.set_build(session, build_id, "running", attempts=1)
    assert attempts.begin_again(session, build_id)

    session.expire_all()
    assert builds.get_build(session, build_id).attempts == 2


def test_a_trial_clears_the_earlier_attempts_at_its_round(session: Session) -> None:
    """A round that made progress is not suspect; its present attempt still counts."""
    task_id, job_id = make.task(session), make.job(session)
    pick = make.pick(session, job_id, task_id, 8)
    other = make.pick(session, job_id, task_id, 8)
    attempts.begin_rounds(session, [other.id, pick.id])
    attempts.begin_rounds(session, [pick.id])

    def counted() -> list[int]:
        session.expire_all()
        return [session.get_one(Pick, each).attempts for each in (pick.id, other.id)]

    assert counted() == [3, 2]
    measure_records.add_record(session, make.timed(task_id, "t", 1.0, pick_id=pick.id))
    assert counted() == [1, 2]
    attempts.end_rounds(session, [pick.id])
    assert counted() == [0, 2]


def test_an_orderly_end_clears_open_rounds_alone(session: Session) -> None:
    """Rounds of other jobs keep their attempts."""
    task_id, job_id, other = make.task(session), make.job(session), make.job(session, 1)
    made = [make.pick(session, owner, task_id, 8).id for owner in (job_id, other)]

    attempts.clear_rounds(session, job_id)

    session.expire_all()
    assert [session.get_one(Pick, pick_id).attempts for pick_id in made] == [0, 1]
    assert len(picks.open_picks(session, job_id)) == 1
