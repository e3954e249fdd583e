"""Worker status: the processes that measure, their activity and utilisation."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from records.models import now
from records.service.service_models import Worker
from records.storage.upsert import insert

# A process without a heartbeat for this long counts as offline.
OFFLINE_AFTER = timedelta(seconds=30)


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """A periodic report of a process; ``busy_share`` is the recent use of its device, 0 to 1.

    ``progress`` is the time at which its main loop, which does not send the report, was last seen
    to run.
    """

    name: str
    host: str
    pid: int
    role: str
    activity: str
    device: dict[str, Any] = field(default_factory=dict)
    job_id: int | None = None
    busy_secs: float = 0.0
    busy_share: float = 0.0
    progress: datetime | None = None


def report(session: Session, new: WorkerReport) -> None:
    """Store a report under the name of its process, with the present time as its heartbeat."""
    at = now()
    columns = {**vars(new), "heartbeat": at, "stopped": None}
    stmt = insert(session, Worker).values(**columns, started=at)
    session.execute(stmt.on_conflict_do_update(index_elements=[Worker.name], set_=columns))


def stop(session: Session, name: str) -> None:
    """Mark a process as stopped in an orderly way."""
    session.execute(
        update(Worker)
        .where(Worker.name == name)
        .values(stopped=now(), activity="stopped", job_id=None, busy_share=0.0)
    )


def forget(session: Session, age: timedelta) -> None:
    """Remove the processes whose last heartbeat is older than ``age``."""
    session.execute(delete(Worker).where(Worker.heartbeat < now() - age))


def list_workers(session: Session, *, seen_within: timedelta | None = None) -> list[Worker]:
    """Return the processes, the last seen first, optionally only those seen within a time."""
    stmt = select(Worker).order_by(Worker.heartbeat.desc(), Worker.id)
    if seen_within is not None:
        stmt = stmt.where(Worker.heartbeat > now() - seen_within)
    return list(session.scalars(stmt))


def active_worker(session: Session) -> Worker | None:
    """Return the process that reported last that it coordinates; None if none does."""
    stmt = select(Worker).where(Worker.role == "active", Worker.stopped.is_(None))
    newest = session.scalars(stmt.order_by(Worker.heartbeat.desc()).limit(1)).first()
    return newest if newest is not None and is_alive(newest) else None


def progress_age_secs(worker: Worker) -> float | None:
    """Return the seconds since a process was seen to make progress; None if it reports none."""
    return None if worker.progress is None else (now() - worker.progress).total_seconds()


def is_alive(worker: Worker) -> bool:
    """Return whether a process has a recent heartbeat and was not stopped."""
    # abs, because a heartbeat in the future means that the clock was set back.
    return worker.stopped is None and abs(now() - worker.heartbeat) < OFFLINE_AFTER
