"""Removal of old rows, in transactions of a thousand rows at most.

Measurements stay, with the picks that paid for them and the row of their job: they are what the
database is for, and totals count them. Each function does one step in the caller's transaction and
returns the number of rows removed; 0 means that there is nothing left to do. A process that dies
between two steps has removed less, and the next one continues.
"""

from datetime import datetime

from sqlalchemy import delete, exists, func, select, update
from sqlalchemy.orm import Session, aliased

from records import jobs
from records.models import (
    Event,
    Job,
    JobStatus,
    JobTag,
    Library,
    MeasureFeature,
    MeasureRecord,
    Network,
)
from records.service.service_models import AuditEvent, Build, IdempotencyKey, Upload, Webhook

STEP_ROWS = 1000
_PURGED = "purged:"


def jobs_with_old_events(session: Session, before: datetime) -> list[int]:
    """Return the jobs whose first event is older than a time, by number."""
    first = (
        select(func.min(Event.sequence)).where(Event.job_id == Job.id).correlate(Job)
    ).scalar_subquery()
    stmt = (
        select(Job.id)
        .join(Event, (Event.job_id == Job.id) & (Event.sequence == first))
        .where(Job.created < before, Event.created < before)
    )
    return list(session.scalars(stmt.order_by(Job.id)))


def remove_events(session: Session, job_id: int, before: datetime) -> int:
    """Remove the first events of a job, up to the first one that is not older than a time."""
    stmt = (
        select(Event.sequence, Event.created)
        .where(Event.job_id == job_id)
        .order_by(Event.sequence)
        .limit(STEP_ROWS)
    )
    old = []
    for sequence, created in session.execute(stmt):
        if created >= before:
            break
        old.append(sequence)
    if old:
        session.execute(delete(Event).where(Event.job_id == job_id, Event.sequence <= old[-1]))
    return len(old)


def remove_features(session: Session, before: datetime) -> int:
    """Remove cost model features of the oldest records; features are made again for new ones."""
    stmt = (
        select(MeasureFeature.record_id, MeasureRecord.created)
        .join(MeasureRecord, MeasureRecord.id == MeasureFeature.record_id)
        .order_by(MeasureFeature.record_id)
        .limit(STEP_ROWS)
    )
    old = [record_id for record_id, created in session.execute(stmt) if created < before]
    session.execute(delete(MeasureFeature).where(MeasureFeature.record_id.in_(old)))
    return len(old)


def remove_audit(session: Session, before: datetime) -> int:
    """Remove entries of the audit log."""
    stmt = select(AuditEvent.id).where(AuditEvent.created < before).order_by(AuditEvent.created)
    old = list(session.scalars(stmt.limit(STEP_ROWS)))
    session.execute(delete(AuditEvent).where(AuditEvent.id.in_(old)))
    return len(old)


def deleted_jobs(session: Session, before: datetime) -> list[int]:
    """Return the jobs that were deleted before a time and are not purged yet."""
    stmt = select(Job.id).where(
        Job.hidden, Job.updated < before, ~Job.submission.startswith(_PURGED, autoescape=True)
    )
    return list(session.scalars(stmt.order_by(Job.id)))


def purge_job(session: Session, job_id: int, before: datetime) -> int:
    """Do one step of the purge of a deleted job, or nothing if it was submitted again.

    Its events go first. The last step removes its status, uploads, builds and libraries that no
    other job has, and what the row of the job says of its owner and model.
    """
    job = jobs.locked(session, job_id)
    session.refresh(job)
    if not job.hidden or job.updated >= before or job.submission.startswith(_PURGED):
        return 0
    events = select(Event.sequence).where(Event.job_id == job_id).order_by(Event.sequence)
    sequences = list(session.scalars(events.limit(STEP_ROWS)))
    if sequences:
        last = sequences[-1]
        session.execute(delete(Event).where(Event.job_id == job_id, Event.sequence <= last))
        return len(sequences)
    other = aliased(Build)
    keys = select(Build.library_key).where(Build.job_id == job_id, Build.library_key.is_not(None))
    shared = exists().where(other.library_key == Library.key, other.job_id != job_id)
    session.execute(
        delete(Library)
        .where(Library.key.in_(keys), ~shared)
        .execution_options(synchronize_session=False)
    )
    for model in (JobStatus, JobTag, IdempotencyKey, Upload, Build, Webhook):
        session.execute(delete(model).where(model.job_id == job_id))
    # Not through the ORM, which would count it as an update of the job.
    session.execute(
        update(Job)
        .where(Job.id == job_id)
        .values(
            name=None, request=None, message=None, note=None, owner=None, project=None,
            submission=f"{_PURGED}{job_id}", updated=job.updated,
        )
    )  # fmt: skip
    _forget_network(session, job.network_id)
    return 1


def _forget_network(session: Session, network_id: int | None) -> None:
    """Forget the name of a network that only purged jobs have; its tasks and records stay."""
    if network_id is None:
        return
    used = exists().where(
        Job.network_id == network_id, ~Job.submission.startswith(_PURGED, autoescape=True)
    )
    session.execute(
        update(Network)
        .where(Network.id == network_id, ~used)
        .values(name=func.substr(Network.sha256, 1, 12))
        .execution_options(synchronize_session=False)
    )
