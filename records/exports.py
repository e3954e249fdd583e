"""Records to be written out, task by task, the best first."""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from records.models import BestRecord, MeasureRecord, Target, Task, Workload


class TaskOut(NamedTuple):
    """A task whose records are written out; ``spec`` is canonical JSON of its target."""

    task_id: int
    workload_id: int
    ir: bytes
    spec: str


class RecordOut(NamedTuple):
    """A verified record; ``run_secs`` in seconds."""

    trace: str
    run_secs: list[float]
    created: datetime


def tasks_of_engine(session: Session, engine: str, target_id: int | None) -> list[int]:
    """Return the tasks of an engine's workloads, of one target or of all, the oldest first."""
    wanted = select(Task.id).join(Workload, Workload.id == Task.workload_id)
    wanted = wanted.where(Workload.engine == engine)
    if target_id is not None:
        wanted = wanted.where(Task.target_id == target_id)
    return list(session.scalars(wanted.order_by(Task.id)))


def task_out(session: Session, task_id: int) -> TaskOut:
    """Return a task with its workload."""
    wanted = select(Task.id, Workload.id, Workload.ir, Target.spec)
    wanted = wanted.join(Workload, Workload.id == Task.workload_id)
    wanted = wanted.join(Target, Target.id == Task.target_id)
    return TaskOut(*session.execute(wanted.where(Task.id == task_id)).one())


def count_verified(session: Session, task_id: int) -> int:
    """Count the verified records of a task."""
    wanted = select(func.count()).where(MeasureRecord.task_id == task_id, MeasureRecord.verified)
    return session.scalar(wanted) or 0


def verified(session: Session, task_id: int, top: int | None) -> Iterator[RecordOut]:
    """Return verified records of a task, the best record first and then the fastest.

    Args:
        session: The transaction; it is read from as records are asked for.
        task_id: The task.
        top: At most so many; None for all.
    """
    wanted = (
        select(MeasureRecord.trace, MeasureRecord.run_secs, MeasureRecord.created)
        .outerjoin(BestRecord, BestRecord.record_id == MeasureRecord.id)
        .where(MeasureRecord.task_id == task_id, MeasureRecord.verified)
        .order_by(BestRecord.record_id.is_(None), MeasureRecord.latency, MeasureRecord.id)
        .limit(top)
    )
    for row in session.execute(wanted.execution_options(yield_per=500)):
        yield RecordOut(row.trace, row.run_secs or [], row.created)


def count_unverified(session: Session, task_ids: list[int]) -> int:
    """Count the records of tasks that failed, or that were compared with nothing."""
    return sum(session.scalar(_unverified(task_id)) or 0 for task_id in task_ids)


def _unverified(task_id: int) -> Select[int]:
    return select(func.count()).where(
        MeasureRecord.task_id == task_id, MeasureRecord.verified.is_(False)
    )
