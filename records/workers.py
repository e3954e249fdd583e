"""Workers: the processes that measure, what they do now, and how busy their devices are."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from records.models import now
from records.service_models import Worker
from records.upsert import insert

# A process that was silent for so long is taken for dead.
SILENT = timedelta(seconds=30)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a process says of itself; ``busy_share`` of its device, from 0 to 1, lately."""

    name: str
    host: str
    pid: int
    role: str
    activity: str
    device: dict[str, Any] = field(default_factory=dict)
    job_id: int | None = None
    busy_secs: float = 0.0
    busy_share: float = 0.0


def report(session: Session, said: Report) -> None:
    """Store what a process says of itself, under its name; it is alive now."""
    at = now()
    columns = {**vars(said), "heartbeat": at, "stopped": None}
    row = insert(session, Worker).values(**columns, started=at)
    session.execute(row.on_conflict_do_update(index_elements=[Worker.name], set_=columns))


def stop(session: Session, name: str) -> None:
    """Note that a process ended of its own will."""
    session.execute(
        update(Worker)
        .where(Worker.name == name)
        .values(stopped=now(), activity="stopped", job_id=None, busy_share=0.0)
    )


def forget(session: Session, silent: timedelta) -> None:
    """Remove the processes that were not heard of for so long."""
    session.execute(delete(Worker).where(Worker.heartbeat < now() - silent))


def list_workers(session: Session, *, lately: timedelta | None = None) -> list[Worker]:
    """Return the processes, those heard of last first; only those heard of lately, if said."""
    wanted = select(Worker).order_by(Worker.heartbeat.desc(), Worker.id)
    if lately is not None:
        wanted = wanted.where(Worker.heartbeat > now() - lately)
    return list(session.scalars(wanted))


def is_alive(worker: Worker) -> bool:
    """Return whether a process was heard of a moment ago and did not say goodbye."""
    # Clocks are set back too: nobody was heard of in an hour from now.
    return worker.stopped is None and abs(now() - worker.heartbeat) < SILENT
