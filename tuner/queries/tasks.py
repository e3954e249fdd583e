"""The rows of a task scheduler table, of a session in this process or out of the database."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from records import bests, picks
from records.models import Job, JobStatus, Pick
from records.tasks import WeightedTask
from records.tuning import task_stats
from scheduler import estimate
from tuner.engines.base import origin_of, variant_of_origin
from tuner.queries.picks import picks_by_task
from tuner.schemas import PickView, TaskView
from tuner.tuning.tasks.snapshot import JobSnapshot, TaskRow
from tuner.tuning.tasks.task_profiles import task_profiles
from tuner.tuning.tasks.task_state import is_exhausted


def view_snapshot(snapshot: JobSnapshot, current: int | None = None) -> list[TaskView]:
    """Return the rows of a session; ``current`` is the id of the task whose round runs."""
    return [
        _view(index, row, running=row.task_id == current) for index, row in enumerate(snapshot.rows)
    ]


def read_tasks(
    session: Session,
    job: Job,
    status: JobStatus | None,
    weighted: Sequence[WeightedTask],
    *,
    is_running: bool,
) -> list[TaskView]:
    """Read the rows of a job's table from sums, without scanning its records."""
    if not weighted:
        return []
    counts = task_stats.of_tasks(session, job.id, [task.task_id for task in weighted])
    own_picks = picks_by_task(
        session, [count.own for count in counts.values() if count.own is not None], weighted
    )
    gains = {} if status is None else status.gains
    views = []
    for index, row in enumerate(_read_rows(session, weighted, counts)):
        pick = own_picks.get(row.task_id)
        views.append(
            _view(
                index,
                row,
                gradient=gains.get(str(row.task_id)),
                running=pick is not None and not pick.done and is_running,
                last_pick=pick,
            )
        )
    return views


def _view(
    index: int,
    row: TaskRow,
    *,
    running: bool,
    gradient: float | None = None,
    last_pick: PickView | None = None,
) -> TaskView:
    return TaskView(
        id=index,
        task_id=row.task_id,
        workload=row.workload,
        name=row.name,
        weight=row.weight,
        flop=row.flop,
        latency_secs=row.latency if math.isfinite(row.latency) else None,
        gflops=estimate.gflops(row.flop, row.latency),
        share=row.share,
        roof_secs=row.roof_secs or None,
        roof_share=_roof_share(row),
        trials=row.n_trials,
        failed=row.n_failed,
        exhausted=row.exhausted,
        gradient=gradient,
        running=running,
        last_pick=last_pick,
        variant=variant_of_origin(row.origin),
        origin=row.origin,
    )


def _roof_share(row: TaskRow) -> float | None:
    """Return the share of its roof that a task reached; None if either is unknown."""
    if not row.roof_secs or not 0.0 < row.latency < math.inf:
        return None
    return row.roof_secs / row.latency


def _read_rows(
    session: Session,
    weighted: Sequence[WeightedTask],
    counts: Mapping[int, task_stats.TaskTrialCounts],
) -> list[TaskRow]:
    best_secs = bests.best_latencies(session, [task.task_id for task in weighted])
    latencies = [best_secs.get(task.task_id, math.inf) for task in weighted]
    weights = np.array([task.weight for task in weighted], dtype=np.int64)
    shares = estimate.shares(weights, np.array(latencies, dtype=float)).tolist()
    roofs = task_profiles(weighted).credible_roofs(latencies).tolist()
    # Exhausted tasks: their newest pick shows that nothing is left to try.
    newest = [count.newest for count in counts.values()]
    ids = [pick_id for pick_id in newest if pick_id is not None]
    rows = session.execute(
        select(Pick.id, Pick.task_id, Pick.n_measured).where(Pick.id.in_(ids), Pick.n_measured == 0)
    ).all()
    failed = picks.failed_picks(session, [row.id for row in rows]) if rows else set()
    exhausted = {row.task_id for row in rows if is_exhausted(row.id, row.n_measured, failed)}
    heads = bests.heads(session, [task.task_id for task in weighted])
    return [
        TaskRow(
            task_id=task.task_id,
            workload=task.workload_hash,
            name=task.name,
            weight=task.weight,
            flop=task.flop,
            latency=latency,
            n_trials=counts[task.task_id].n_trials,
            n_failed=counts[task.task_id].n_failed,
            share=share,
            roof_secs=roof,
            exhausted=task.task_id in exhausted,
            origin=origin_of(*heads.get(task.task_id, ("", None))),
        )
        for task, latency, share, roof in zip(weighted, latencies, shares, roofs, strict=True)
    ]
