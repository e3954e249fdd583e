"""Queries for writing records to the logs of other tools, task by task, the best first."""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from records.models import BestRecord, MeasureRecord, Target, Task, Workload


class ExportedTask(NamedTuple):
    """A task whose records are exported; ``spec`` is the canonical JSON of its target."""

    task_id: int
    workload_id: int
    ir: bytes
    spec: str


class ExportedRecord(NamedTuple):
    """A verified record; ``run_secs`` in seconds."""

    trace: str
    run_secs: list[float]
    created: datetime


def tasks_of_engine(session: Session, engine: str, target_id: int | None) -> list[int]:
    """Return the tasks of an engine, for one target or all targets, the oldest first."""
    stmt = select(Task.id).join(Workload, Workload.id == Task.workload_id)
    stmt = stmt.where(Workload.engine == engine)
    if target_id is not None:
        stmt = stmt.where(Task.target_id == target_id)
    return list(session.scalars(stmt.order_by(Task.id)))


def exported_task(session: Session, task_id: int) -> ExportedTask:
    """Return a task with its workload."""
    stmt = select(Task.id, Workload.id, Workload.ir, Target.spec)
    stmt = stmt.join(Workload, Workload.id == Task.workload_id)
    stmt = stmt.join(Target, Target.id == Task.target_id)
    return ExportedTask(*session.execute(stmt.where(Task.id == task_id)).one())


def count_verified(session: Session, task_id: int) -> int:
    """Count the verified records of a task."""
    stmt = select(func.count()).where(MeasureRecord.task_id == task_id, MeasureRecord.verified)
    return session.scalar(stmt) or 0


def verified(session: Session, task_id: int, top: int | None) -> Iterator[ExportedRecord]:
    """Yield verified records of a task: the best record, then the others by latency.

    Args:
        session: The transaction; rows are fetched as the iterator advances.
        top: Maximum number of records; None for all.
    """
    stmt = (
        select(MeasureRecord.trace, MeasureRecord.run_secs, MeasureRecord.created)
        .outerjoin(BestRecord, BestRecord.record_id == MeasureRecord.id)
        .where(MeasureRecord.task_id == task_id, MeasureRecord.verified)
        .order_by(BestRecord.record_id.is_(None), MeasureRecord.latency, MeasureRecord.id)
        .limit(top)
    )
    for row in session.execute(stmt.execution_options(yield_per=500)):
        yield ExportedRecord(row.trace, row.run_secs or [], row.created)


def count_unverified(session: Session, task_ids: list[int]) -> int:
    """Count the records of tasks that failed or were not compared with a reference."""
    return sum(
        session.scalar(
            select(func.count()).where(
                MeasureRecord.task_id == task_id, MeasureRecord.verified.is_(False)
            )
        )
        or 0
        for task_id in task_ids
    )
