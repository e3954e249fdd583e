"""A job over time, and the ways in which its trials failed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from records import jobs, tasks
from records.models import JobFailure, MeasureRecord, Pick
from records.tasks import WeightedTask
from tuner.queries.latencies import total_latencies
from tuner.schemas import FailureView, HistoryPoint, HistoryView, TaskTrials


def read_failures(session: Session, job_id: int) -> list[FailureView]:
    """Return how the trials of a job failed, the most frequent way first."""
    rows = session.execute(
        select(JobFailure, MeasureRecord.error_text, MeasureRecord.worker)
        .join(MeasureRecord, MeasureRecord.id == JobFailure.record_id)
        .where(JobFailure.job_id == job_id)
        .order_by(JobFailure.n_trials.desc(), JobFailure.error_kind)
    )
    return [
        FailureView(
            kind=failure.error_kind,
            trials=failure.n_trials,
            record=failure.record_id,
            message=message or "",
            worker=worker,
        )
        for failure, message, worker in rows
    ]


def read_history(
    session: Session, job_id: int, *, n_points: int = 300, n_tasks: int = 12, to_now: bool = True
) -> HistoryView:
    """Return the latency of a job's network over its trials and seconds, and the trials by task.

    Args:
        n_points: Approximate maximum of points; the last round is always one.
        n_tasks: Tasks with most trials, shown one by one; all others are added up.
        to_now: True to add the job as it is now to its rounds: the finals and other jobs change
            its latency.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    job = jobs.get_job(session, job_id)
    weighted = tasks.tasks_of_job(session, job)
    own = (Pick.job_id == job_id, Pick.done)
    # Ties go to the first.
    rows = session.execute(
        select(Pick.task_id, func.sum(Pick.n_measured)).where(*own).group_by(Pick.task_id)
    )
    trials = {task_id: n for task_id, n in rows}  # noqa: C416  rows are not pairs to mypy
    by_row = [trials.get(task.task_id, 0) for task in weighted]
    ranked = sorted(range(len(weighted)), key=lambda row: -by_row[row])
    shown = [row for row in ranked[:n_tasks] if by_row[row]]
    last = session.scalar(select(func.max(Pick.sequence)).where(*own)) or 0
    step = max(-(-last // n_points), 1)
    # Rounds 1 to step are the first point, and so on: the bucket of a round is the point after it.
    bucket = (Pick.sequence + (step - 1)) // step
    task = case((Pick.task_id.in_([weighted[row].task_id for row in shown]), Pick.task_id))
    sums = session.execute(
        select(bucket, task, func.sum(Pick.n_measured), func.sum(Pick.secs))
        .where(*own)
        .group_by(bucket, task)
    ).all()
    ends = {
        (sequence + step - 1) // step: (sequence, total)
        for sequence, total in session.execute(
            select(Pick.sequence, Pick.total_secs).where(
                *own, Pick.sequence.in_([*range(step, last, step), last])
            )
        )
    }
    view = _history(job_id, weighted, shown, sums, ends)
    total = total_latencies(session, [job_id]).get(job_id)
    if not (to_now and view.points) or total in (None, view.points[-1].total_latency_secs):
        return view
    newest = view.points[-1]
    end = replace(newest, secs=max(job.spent_secs, newest.secs), total_latency_secs=total)
    lines = [replace(line, trials=[*line.trials, line.trials[-1]]) for line in view.tasks]
    return replace(view, points=[*view.points, end], tasks=lines)


def _history(
    job_id: int,
    weighted: Sequence[WeightedTask],
    shown: Sequence[int],
    sums: Sequence[Any],
    ends: dict[int, tuple[int, float | None]],
) -> HistoryView:
    buckets = sorted({bucket for bucket, *_ in sums})
    column = {bucket: i for i, bucket in enumerate(buckets)}
    line = {weighted[row].task_id: i for i, row in enumerate(shown)}
    trials = np.zeros((len(shown) + 1, len(buckets)), np.int64)
    secs = np.zeros(len(buckets))
    for bucket, task_id, n_measured, round_secs in sums:
        trials[line.get(task_id, len(shown)), column[bucket]] += n_measured
        secs[column[bucket]] += round_secs or 0.0
    trials, secs = trials.cumsum(axis=1), secs.cumsum()
    points = [
        HistoryPoint(
            pick=ends.get(bucket, (0, None))[0],
            trials=int(trials[:, i].sum()),
            secs=float(secs[i]),
            total_latency_secs=ends.get(bucket, (0, None))[1],
        )
        for i, bucket in enumerate(buckets)
    ]
    lines = [
        TaskTrials(task=weighted[row].task_id, name=weighted[row].name, trials=trials[i].tolist())
        for i, row in enumerate(shown)
    ]
    if buckets and trials[-1, -1]:
        lines.append(TaskTrials(task=None, name="other tasks", trials=trials[-1].tolist()))
    return HistoryView(job=job_id, points=points, tasks=lines)


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
