"""States of jobs as all but their coordinators see them.

A job that is marked as running does not run once the lease of its coordinator has expired: a job
of the service is queued, because the next coordinator takes it up, and the job of a command is
paused, because the same command resumes it.
"""

from collections.abc import Iterable

from sqlalchemy import ColumnElement, Text, case, cast, select
from sqlalchemy.orm import Session

from records.models import Job, JobState
from records.service import leases


def shown(session: Session) -> ColumnElement[JobState]:
    """Return the state in which a job is shown, as an SQL expression."""
    is_submitted = Job.submission != ""
    role = case((is_submitted, leases.COORDINATOR), else_=leases.JOB_PREFIX + cast(Job.id, Text))
    is_left = (Job.state == "running") & ~leases.is_held(session, role)
    return case((is_left & is_submitted, "queued"), (is_left, "paused"), else_=Job.state)


def states_of(session: Session, job_ids: Iterable[int]) -> dict[int, JobState]:
    """Return the state in which each job that exists is shown, by id."""
    stmt = select(Job.id, shown(session)).where(Job.id.in_(job_ids))
    return {job_id: state for job_id, state in session.execute(stmt)}  # noqa: C416  rows, not pairs


def state_of(session: Session, job_id: int) -> JobState:
    """Return the state in which an existing job is shown."""
    return states_of(session, [job_id])[job_id]
