"""Trial counts of tasks and jobs, and the latest picks of tasks."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Select, bindparam, case, func, or_, select
from sqlalchemy.orm import Session, aliased

from records.models import ImportedRound, Job, Pick


class TaskTrialCounts(NamedTuple):
    """Trials and latest picks of a task, as one job sees them.

    Attributes:
        n_trials: Trials spent on the task by all jobs.
        n_failed: Failed trials among them.
        newest: Id of the last pick of any job that is completed or has trials; None without one.
        own: Id of the last pick of this job; None without one.
    """

    n_trials: int = 0
    n_failed: int = 0
    newest: int | None = None
    own: int | None = None


def of_tasks(session: Session, job_id: int, task_ids: Sequence[int]) -> dict[int, TaskTrialCounts]:
    """Return the counts of each task for a job, in one pass over the picks."""
    rows = session.execute(
        select(
            Pick.task_id,
            func.sum(Pick.n_measured),
            func.sum(Pick.n_failed),
            func.max(case((or_(Pick.done, Pick.n_measured > 0), Pick.id))),
            func.max(case((Pick.job_id == job_id, Pick.id))),
        )
        .where(Pick.task_id.in_(task_ids))
        .group_by(Pick.task_id)
    )
    counts = dict.fromkeys(task_ids, TaskTrialCounts())
    counts |= {row[0]: TaskTrialCounts(*row[1:]) for row in rows}
    imported = select(ImportedRound.task_id, ImportedRound.n_measured, ImportedRound.n_failed)
    for task_id, n_trials, n_failed in session.execute(
        imported.where(ImportedRound.task_id.in_(task_ids))
    ):
        picked = counts[task_id]
        counts[task_id] = picked._replace(
            n_trials=picked.n_trials + n_trials, n_failed=picked.n_failed + n_failed
        )
    return counts


def trials_of_jobs(session: Session, job_ids: Sequence[int]) -> dict[int, int]:
    """Count the trials that each existing job paid for.

    Picks store the total of their job after the round, so only later picks are added up.
    """
    rows = session.execute(_TRIALS_OF_JOBS, {"job_ids": job_ids})
    return {job_id: n_trials for job_id, n_trials in rows}  # noqa: C416  rows are not pairs to mypy


def _trials_of_jobs() -> Select[int, int]:
    last, later = aliased(Pick), aliased(Pick)
    last_total = (
        select(Pick.id)
        .where(Pick.job_id == Job.id, Pick.job_trials.is_not(None))
        .order_by(Pick.sequence.desc())
        .limit(1)
        .correlate(Job)
        .scalar_subquery()
    )
    since = (
        select(func.sum(later.n_measured))
        .where(later.job_id == Job.id, later.sequence > func.coalesce(last.sequence, 0))
        .correlate(Job, last)
        .scalar_subquery()
    )
    return (
        select(Job.id, func.coalesce(last.job_trials, 0) + func.coalesce(since, 0))
        .outerjoin(last, last.id == last_total)
        .where(Job.id.in_(bindparam("job_ids", expanding=True)))
    )


# The statement is built once: building takes longer than the database takes to answer.
_TRIALS_OF_JOBS = _trials_of_jobs()
