"""Events of jobs, in an order that readers can resume from.

The sequence numbers of a job have no gaps, and a number never becomes visible after a later one:
they are assigned under a lock on the job, which the writer holds until it commits.

========== =====================================================================================
kind       data
========== =====================================================================================
state      state, message
budget     trials, seconds
priority   priority
labels     tags
pick       pick (sequence number), task_id, n_trials, reason
trial      pick, task_id, record, latency_secs or error_kind, best (true if it became the best)
round      pick, task_id, n_measured, n_failed, total_secs, spent_trials
status     phase, task_id
build      build (id), state, message
webhook    of_service, status, delivered
========== =====================================================================================
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import Event, Job, JobStatus, now
from records.storage.text import storable
from records.storage.upsert import insert, table
from records.tuning import job_states


class LastEvents(NamedTuple):
    """Sequence number of the last event of a job, and the state in which the job is shown."""

    n_events: int
    state: str


class NewEvent(NamedTuple):
    """An event to append to a job."""

    job_id: int
    kind: str
    data: dict[str, Any]


def add_event(session: Session, job_id: int, kind: str, data: dict[str, Any]) -> int:
    """Append an event to a job and return its sequence number, which starts at 1.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    return add_events(session, [NewEvent(job_id, kind, data)])[0]


def add_events(session: Session, new: Sequence[NewEvent]) -> list[int]:
    """Append events to their jobs, in this order, and return their sequence numbers.

    Raises:
        NoSuchRow: If a job does not exist.
    """
    if not new:
        return []
    last = _reserve(session, Counter(event.job_id for event in new))
    numbers = [next(last[event.job_id]) for event in new]
    at = now()
    rows = [
        event._asdict() | {"sequence": number, "data": finite(event.data), "created": at}
        for event, number in zip(new, numbers, strict=True)
    ]
    session.execute(table(Event).insert(), rows)
    return numbers


def _reserve(session: Session, counts: Mapping[int, int]) -> dict[int, Iterator[int]]:
    """Reserve the given number of sequence numbers of each job, in ascending order."""
    # Jobs are updated in the order of their ids, so that two writers never deadlock.
    at = now()
    rows = [{"of_job": job_id, "n_new": counts[job_id], "updated": at} for job_id in sorted(counts)]
    session.connection().execute(_ADD_TO_COUNT, rows)
    stored = session.execute(_LAST, {"job_ids": list(counts)})
    ends: dict[int, int] = {row.id: row.n_events for row in stored}
    for job_id in counts:
        if job_id not in ends:
            raise NoSuchRow(f"no job {job_id}")
    return {job_id: iter(range(end - counts[job_id] + 1, end + 1)) for job_id, end in ends.items()}


def events_after(session: Session, job_id: int, sequence: int, limit: int = 1000) -> list[Event]:
    """Return at most ``limit`` events of a job after a sequence number, the oldest first."""
    stmt = select(Event).where(Event.job_id == job_id, Event.sequence > sequence)
    return list(session.scalars(stmt.order_by(Event.sequence).limit(limit)))


def last_events(session: Session, job_ids: Sequence[int]) -> dict[int, LastEvents]:
    """Return the last event and the state of each job that exists."""
    stmt = select(Job.id, Job.n_events, job_states.shown(session))
    rows = session.execute(stmt.where(Job.id.in_(job_ids), ~Job.hidden))
    return {job_id: LastEvents(n_events, state) for job_id, n_events, state in rows}


def set_status(session: Session, job_id: int, **values: Any) -> None:
    """Set the status of a job.

    Args:
        values: Columns of :class:`records.models.JobStatus`; if ``gains`` is None, the stored
            gains stay.
    """
    columns = finite({name: value for name, value in values.items() if value is not None})
    columns |= {"task_id": values.get("task_id"), "updated": now()}
    row = insert(session, JobStatus).values(job_id=job_id, **{"gains": {}, **columns})
    session.execute(row.on_conflict_do_update(index_elements=[JobStatus.job_id], set_=columns))
    add_event(
        session, job_id, "status", {"phase": values["phase"], "task_id": values.get("task_id")}
    )


def status_of(session: Session, job_id: int) -> JobStatus | None:
    """Return the last status of a job, or None."""
    return session.get(JobStatus, job_id)


def finite(value: Any) -> Any:
    """Return data that JSON and both databases can store: infinity and NaN become null."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        # Most values are plain numbers, and every trial has an event.
        return {
            name: item
            if type(item) in _PLAIN or (type(item) is float and math.isfinite(item))
            else finite(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_PLAIN = (int, bool, type(None))
_JOB = table(Job)
_ADD_TO_COUNT = (
    update(_JOB)
    .where(_JOB.c.id == bindparam("of_job"))
    .values(n_events=_JOB.c.n_events + bindparam("n_new"), updated=bindparam("updated"))
)
_LAST = select(_JOB.c.id, _JOB.c.n_events).where(
    _JOB.c.id.in_(bindparam("job_ids", expanding=True))
)
