"""Tags and notes that people give to jobs."""

from collections.abc import Iterable, Sequence

from sqlalchemy import ColumnElement, delete, select, true
from sqlalchemy.orm import Session

from records import jobs
from records.models import Job, JobTag
from records.storage.text import storable
from records.tuning import events


def edit(
    session: Session, job_id: int, *, tags: Iterable[str] | None = None, note: str | None = None
) -> None:
    """Replace the tags of a job, its note, or both; None changes nothing, and empty ones remove.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    job = jobs.locked(session, job_id)
    if tags is not None:
        session.execute(delete(JobTag).where(JobTag.job_id == job_id))
        session.add_all(JobTag(job_id=job_id, tag=tag) for tag in sorted({*map(storable, tags)}))
    if note is not None:
        job.note = storable(note) or None
    session.flush()
    if tags is not None or note is not None:
        events.add_event(session, job_id, "labels", {"tags": tags_of(session, [job_id])[job_id]})


def tags_of(session: Session, job_ids: Sequence[int]) -> dict[int, list[str]]:
    """Return the tags of each job, sorted."""
    tags: dict[int, list[str]] = {job_id: [] for job_id in job_ids}
    stmt = select(JobTag).where(JobTag.job_id.in_(tags)).order_by(JobTag.job_id, JobTag.tag)
    for row in session.scalars(stmt):
        tags[row.job_id].append(row.tag)
    return tags


def has_tags(tags: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that a job has all of some tags."""
    condition: ColumnElement[bool] = true()
    for tag in tags:
        condition &= (
            select(JobTag.job_id).where(JobTag.job_id == Job.id, JobTag.tag == tag).exists()
        )
    return condition
