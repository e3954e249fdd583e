"""Measurements of each job, to compare two jobs."""

from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from records.models import Pick


class OwnResult(NamedTuple):
    """Best latency that a job measured for a task, in seconds, and its trials on it."""

    best_secs: float | None = None
    n_trials: int = 0


def own_results(session: Session, job_id: int) -> dict[int, OwnResult]:
    """Return what a job measured itself, by task; best records belong to all jobs of a target."""
    rows = session.execute(
        select(Pick.task_id, func.min(Pick.best_secs), func.sum(Pick.n_measured))
        .where(Pick.job_id == job_id)
        .group_by(Pick.task_id)
    )
    return {task_id: OwnResult(best_secs, n_trials) for task_id, best_secs, n_trials in rows}
