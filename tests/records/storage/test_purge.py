"""Old rows go in small steps, and measurements stay."""

from datetime import timedelta

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from records import jobs, measure_records
from records.models import Event, Job, MeasureFeature, MeasureRecord, Pick, now
from records.service import submissions
from records.service.owners import audit
from records.service.service_models import AuditEvent, Upload
from records.storage import purge
from records.tuning import events
from tests.records import make
from tests.records.service.test_submissions import submission_of


def count(session: Session, model: type) -> int:
    """Count the rows of a table."""
    return session.scalar(select(func.count()).select_from(model)) or 0


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of two rows."""
    monkeypatch.setattr(purge, "STEP_ROWS", 2)


def add_events(session: Session, job_id: int, n: int) -> None:
    """Append events to a job."""
    for number in range(n):
        events.add_event(session, job_id, "status", {"phase": f"{number}", "task_id": None})


def test_old_events_go_from_the_first_on_and_numbers_stay(session: Session) -> None:
    """A stream continues with the next event that is left, and new ones get the next numbers."""
    old, young = make.job(session), make.job(session, seed=2)
    add_events(session, old, 5)
    add_events(session, young, 2)
    at = now()
    session.execute(update(Event).values(created=at))
    session.execute(
        update(Event)
        .where(Event.job_id == old, Event.sequence <= 3)
        .values(created=at - timedelta(days=9))
    )
    session.execute(update(Job).values(created=at - timedelta(days=20)))
    before = at - timedelta(days=5)

    assert purge.jobs_with_old_events(session, before) == [old]
    steps = [purge.remove_events(session, old, before) for _ in range(3)]

    assert steps == [2, 1, 0]
    assert purge.jobs_with_old_events(session, before) == []
    assert [event.sequence for event in events.events_after(session, old, 0)] == [4, 5]
    assert events.add_event(session, old, "status", {}) == 6
    assert len(events.events_after(session, young, 0)) == 2


def test_old_features_and_audit_entries_go(session: Session) -> None:
    """The records of the features stay."""
    task_id = make.task(session)
    for number in range(3):
        new = make.timed(task_id, f"t{number}", 1.0, features=b"f")
        assert measure_records.add_record(session, new) is not None
        audit.log_action(session, "me", "here", "tune")
    at = now()
    session.execute(
        update(MeasureRecord).where(MeasureRecord.id <= 2).values(created=at - timedelta(days=9))
    )
    session.execute(
        update(AuditEvent).where(AuditEvent.id != 2).values(created=at - timedelta(days=9))
    )
    before = at - timedelta(days=5)

    assert [purge.remove_features(session, before) for _ in range(2)] == [2, 0]
    assert [purge.remove_audit(session, before) for _ in range(2)] == [2, 0]

    assert session.scalars(select(MeasureFeature.record_id)).all() == [3]
    assert session.scalars(select(AuditEvent.id)).all() == [2]
    assert count(session, MeasureRecord) == 3


def deleted_job(session: Session) -> int:
    """Return a job of the service with a trial, that was deleted ten days ago."""
    job, _ = submissions.submit(session, submission_of("a" * 64))
    task_id = make.task(session)
    pick = make.pick(session, job.id, task_id, 1)
    measure_records.add_record(session, make.timed(task_id, "t", 1.0, pick_id=pick.id))
    session.add(Upload(job_id=job.id, owner=None, sha256="a" * 64, n_bytes=1))
    jobs.set_state(session, job.id, "done")
    submissions.hide(session, job.id)
    session.execute(update(Job).where(Job.id == job.id).values(updated=now() - timedelta(days=10)))
    session.expire_all()
    return job.id


def test_a_deleted_job_is_purged_step_by_step_and_its_measurements_stay(session: Session) -> None:
    """The row stays for the picks that refer to it, without a name or a request."""
    job_id = deleted_job(session)
    before = now() - timedelta(days=5)
    n_events = count(session, Event)
    assert n_events > 2
    n_records, n_picks = count(session, MeasureRecord), count(session, Pick)

    assert purge.deleted_jobs(session, now() - timedelta(days=11)) == []
    assert purge.deleted_jobs(session, before) == [job_id]
    assert purge.purge_job(session, job_id, before) == 2
    # A process that is killed here leaves a job that is still to be purged.
    assert purge.deleted_jobs(session, before) == [job_id]
    while purge.purge_job(session, job_id, before):
        pass

    assert purge.deleted_jobs(session, before) == []
    session.expire_all()
    job = session.get_one(Job, job_id)
    assert (job.name, job.request, job.hidden) == (None, None, True)
    assert (count(session, Event), count(session, Upload)) == (0, 0)
    assert (count(session, MeasureRecord), count(session, Pick)) == (n_records, n_picks)
    again, is_new = submissions.submit(session, submission_of("a" * 64))
    assert is_new
    assert again.id != job_id


def test_a_job_that_is_submitted_again_is_not_purged(session: Session) -> None:
    """It came back between two steps, and keeps what it has."""
    job_id = deleted_job(session)
    before = now() - timedelta(days=5)
    assert purge.purge_job(session, job_id, before) == 2
    submissions.submit(session, submission_of("a" * 64))

    assert purge.purge_job(session, job_id, before) == 0
    assert session.get_one(Job, job_id).request is not None
    assert count(session, Upload) == 1
