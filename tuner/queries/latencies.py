"""Total latencies: estimates for whole networks, by the best records of the moment."""

from collections.abc import Sequence

from sqlalchemy import Select, and_, bindparam, func, select
from sqlalchemy.orm import Session

from records.models import BestRecord, Job, NetworkTask, Task


def total_latencies(session: Session, job_ids: Sequence[int]) -> dict[int, float]:
    """Add up the best latencies of each job's tasks, each times its weight in the network.

    Lists, pages, metrics and the command line all show this sum: the one that a coordinator
    stores with its status is older than the finals, and than records of other jobs.

    Returns:
        Seconds by job; a job is left out while one of its tasks has no best record.
    """
    rows = session.execute(_TOTAL_LATENCIES, {"job_ids": job_ids})
    return {job_id: secs for job_id, secs in rows}  # noqa: C416  rows are not pairs to mypy


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
