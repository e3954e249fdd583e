"""Where tasks and jobs stand: their trials, and the picks that were last."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Select, bindparam, case, func, or_, select
from sqlalchemy.orm import Session, aliased

from records.models import ImportedRound, Job, Pick


class TaskTrialCounts(NamedTuple):
    """A task, seen from a job.

    Attributes:
        n_trials: Trials spent on it, by whomever.
        n_failed: Those of them that failed.
        newest: Id of the last pick for it, by whomever, that is over or has trials; or None.
        own: Id of the job's last pick for it, or None.
    """

    n_trials: int = 0
    n_failed: int = 0
    newest: int | None = None
    own: int | None = None


def of_tasks(session: Session, job_id: int, task_ids: Sequence[int]) -> dict[int, TaskTrialCounts]:
    """Return where tasks stand for a job, all of them, in one pass over their picks."""
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
    found = dict.fromkeys(task_ids, TaskTrialCounts())
    found |= {row[0]: TaskTrialCounts(*row[1:]) for row in rows}
    imported = select(ImportedRound.task_id, ImportedRound.n_measured, ImportedRound.n_failed)
    for task_id, n_trials, n_failed in session.execute(
        imported.where(ImportedRound.task_id.in_(task_ids))
    ):
        picked = found[task_id]
        found[task_id] = picked._replace(
            n_trials=picked.n_trials + n_trials, n_failed=picked.n_failed + n_failed
        )
    return found


def trials_of_jobs(session: Session, job_ids: Sequence[int]) -> dict[int, int]:
    """Count the trials that jobs paid for, for those of them that exist.

    What a job had come to after a round stands beside its pick: only later picks are added up.
    """
    rows = session.execute(_TRIALS_OF_JOBS, {"job_ids": job_ids})
    return {job_id: n_trials for job_id, n_trials in rows}  # noqa: C416  rows are not pairs to mypy


def _trials_of_jobs() -> Select[int, int]:
    last, later = aliased(Pick), aliased(Pick)
    told = (
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
        .outerjoin(last, last.id == told)
        .where(Job.id.in_(bindparam("job_ids", expanding=True)))
    )


# Made once: to make it takes longer than the database takes to answer it.
_TRIALS_OF_JOBS = _trials_of_jobs()
