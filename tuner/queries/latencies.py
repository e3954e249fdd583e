"""Total latencies: estimates for whole networks, by the best records of the moment."""

from collections.abc import Sequence

from sqlalchemy import Select, and_, bindparam, func, or_, select
from sqlalchemy.orm import Session, aliased

from records.models import BestRecord, Job, MeasureRecord, NetworkTask, Pick, Task
from records.tasks import WeightedTask


def total_latencies(session: Session, job_ids: Sequence[int]) -> dict[int, float]:
    """Add up the best latencies of each job's tasks, each times its weight in the network.

    Lists, pages, metrics and the command line all show this sum: the one that a coordinator
    stores with its status is older than the finals, and than records of other jobs.

    Returns:
        Seconds by job; a job is left out while one of its tasks has no best record.
    """
    rows = session.execute(_TOTAL_LATENCIES, {"job_ids": job_ids})
    return {job_id: secs for job_id, secs in rows}  # noqa: C416  rows are not pairs to mypy


def untuned_latency(session: Session, weighted: Sequence[WeightedTask]) -> float | None:
    """Add up the latencies of each task's first trial, each times its weight in the network.

    The first candidate of a task is the schedule by rule that a library without records has. Its
    picks lead to it by indices, however many records the task has.

    Returns:
        Seconds; None if the first trial of a task failed, or was not of a schedule by rule.
    """
    paid = aliased(MeasureRecord)
    pick = select(func.min(Pick.id)).where(Pick.task_id == Task.id).correlate(Task)
    first = select(func.min(paid.id)).where(paid.pick_id == pick.scalar_subquery())
    by_rule = (MeasureRecord.origin.startswith(name) for name in ("rules", "variants"))
    rows = session.execute(
        select(Task.id, MeasureRecord.latency)
        .join(MeasureRecord, MeasureRecord.id == first.correlate(Task).scalar_subquery())
        .where(
            Task.id.in_([task.task_id for task in weighted]),
            MeasureRecord.verified,
            or_(*by_rule),
        )
    )
    latencies = {task_id: secs for task_id, secs in rows if secs is not None}
    if not weighted or any(task.task_id not in latencies for task in weighted):
        return None
    return float(sum(task.weight * latencies[task.task_id] for task in weighted))


def _select_total_latencies() -> Select[int, float]:
    return (
        select(Job.id, func.sum(NetworkTask.weight * BestRecord.latency))
        .join(NetworkTask, NetworkTask.network_id == Job.network_id)
        .join(Task, and_(Task.id == NetworkTask.task_id, Task.target_id == Job.target_id))
        .outerjoin(BestRecord, BestRecord.task_id == Task.id)
        .where(Job.id.in_(bindparam("job_ids", expanding=True)))
        .group_by(Job.id)
        .having(func.count() == func.count(BestRecord.task_id))
    )


# Built once: building it takes longer than the database takes to answer.
_TOTAL_LATENCIES = _select_total_latencies()
