"""Events: what happened to a job, in an order that readers can resume from.

The sequence numbers of a job have no gaps, and no number shows up after a later one: they are
given under a lock on the job, which its writer holds until it commits.

========== =====================================================================================
kind       data
========== =====================================================================================
state      state, message
budget     trials, seconds
priority   priority
pick       pick (sequence number), task_id, n_trials, reason
trial      pick, task_id, record, latency_secs or error_kind, best (whether it became that)
round      pick, task_id, n_measured, n_failed, total_secs, spent_trials
status     phase, task_id
build      build (id), state, message
========== =====================================================================================
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import Event, Job, JobStatus, now
from records.statements import insert
from records.texts import storable


class LastEvents(NamedTuple):
    """The number of the last event of a job, and the job's state."""

    n_events: int
    state: str


def add_event(session: Session, job_id: int, kind: str, data: dict[str, Any]) -> int:
    """Append an event to a job and return its sequence number, which starts at 1.

    Raises:
        NoSuchRow: If there is no such job.
    """
    sequence = session.execute(
        update(Job)
        .where(Job.id == job_id)
        .values(n_events=Job.n_events + 1)
        .returning(Job.n_events)
        .execution_options(synchronize_session=False)
    ).scalar_one_or_none()
    if sequence is None:
        raise NoSuchRow(f"no job {job_id}")
    row = {"job_id": job_id, "sequence": sequence, "kind": kind, "data": finite(data)}
    session.execute(insert(session, Event).values(**row))
    number: int = sequence
    return number


def events_after(session: Session, job_id: int, sequence: int, limit: int = 1000) -> list[Event]:
    """Return the events of a job after one, the oldest first, at most ``limit``."""
    wanted = select(Event).where(Event.job_id == job_id, Event.sequence > sequence)
    return list(session.scalars(wanted.order_by(Event.sequence).limit(limit)))


def last_events(session: Session, job_ids: Sequence[int]) -> dict[int, LastEvents]:
    """Return where jobs stand, for those of them that exist."""
    rows = session.execute(
        select(Job.id, Job.n_events, Job.state).where(Job.id.in_(job_ids), ~Job.hidden)
    )
    return {job_id: LastEvents(n_events, state) for job_id, n_events, state in rows}


def set_status(session: Session, job_id: int, **values: Any) -> None:
    """Say what goes on in a job.

    Args:
        session: The transaction.
        job_id: The job.
        values: Columns of :class:`records.models.JobStatus`; None for gains keeps those said
            before.
    """
    columns = finite({name: value for name, value in values.items() if value is not None})
    columns |= {"task_id": values.get("task_id"), "updated": now()}
    row = insert(session, JobStatus).values(job_id=job_id, **{"gains": {}, **columns})
    session.execute(row.on_conflict_do_update(index_elements=[JobStatus.job_id], set_=columns))
    add_event(
        session, job_id, "status", {"phase": values["phase"], "task_id": values.get("task_id")}
    )


def status_of(session: Session, job_id: int) -> JobStatus | None:
    """Return what was last said of a job."""
    return session.get(JobStatus, job_id)


def finite(value: Any) -> Any:
    """Return data as JSON can say it and databases store: infinity and NaN become null."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
