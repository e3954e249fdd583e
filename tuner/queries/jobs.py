"""Read what people are shown of jobs.

Everything comes from sums and keys, so that a job of a million records is read as fast as one
of a hundred.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from sqlalchemy import ColumnElement, Text, case, cast, func, select
from sqlalchemy.orm import Session

from records import bests, events, jobs, networks, task_stats, tasks
from records.models import Job, JobFailure, JobStatus, MeasureRecord, Network, Pick, Target
from records.tasks import WeightedTask
from scheduler import estimate
from tuner.queries.explain import explain
from tuner.queries.latencies import network_latencies
from tuner.schemas import (
    FailureView,
    HistoryPoint,
    HistoryView,
    JobSummary,
    JobView,
    OutlookView,
    PickView,
    SplitView,
    TaskTrials,
    TaskView,
)
from tuner.tuning.snapshot import look_ahead_on, read_snapshot

_SHOWN = (
    Pick.sequence,
    Pick.task_id,
    Pick.n_trials,
    Pick.terms,
    Pick.done,
    Pick.n_measured,
    Pick.n_failed,
    Pick.secs,
    Pick.total_secs,
    Pick.created,
)


JobOrder = Literal[
    "created", "-created", "updated", "-updated", "priority", "-priority", "name", "-name"
]
# As _summary names a job.
_NAME = func.lower(
    func.coalesce(func.nullif(Job.name, ""), Network.name, "job " + cast(Job.id, Text))
)
_SORTED_BY: dict[str, ColumnElement[Any]] = {
    "created": Job.created.expression,
    "updated": Job.updated.expression,
    "priority": Job.priority.expression,
    "name": _NAME,
}


def read_job(session: Session, job_id: int) -> JobView:
    """Return the table of a job.

    Raises:
        NoSuchRow: If there is no such job.
    """
    job = jobs.get_job(session, job_id)
    status = events.status_of(session, job_id)
    weighted = tasks.tasks_of_job(session, job)
    lines = _lines(session, job, status, weighted)
    last = session.scalars(
        select(Pick).where(Pick.job_id == job_id).order_by(Pick.sequence.desc()).limit(1)
    ).first()
    outlook: OutlookView | None = None
    if status is not None:
        outlook = None if status.outlook is None else OutlookView(**status.outlook)
        spent = status.spent_trials
    else:
        # Nobody has said: it was run by an older tuner, or not yet.
        spent = 0
        if weighted:
            overview = read_snapshot(session, weighted, job)
            spent = overview.spent_trials(job.budget_trials)
            if (ahead := look_ahead_on(overview)) is not None:
                outlook = OutlookView(ahead.n_trials, ahead.saving, ahead.spread)
    own = task_stats.trials_of_jobs(session, [job_id])[job_id]
    total = network_latencies(session, [job_id]).get(job_id)
    return JobView(
        job=_summary(session, job, status, own, max(spent, own), total),
        tasks=lines,
        outlook=outlook,
        last_pick=None if last is None else view_pick(last, weighted),
        split=_split(session, job),
    )


def list_jobs(
    session: Session,
    *,
    states: Sequence[str] = (),
    text: str = "",
    sort: JobOrder = "-created",
    after: tuple[Any, int] | None = None,
    limit: int = 50,
) -> list[JobSummary]:
    """Return jobs, a page at a time.

    Args:
        session: The transaction.
        states: Only jobs in these; empty for all.
        text: Only jobs whose name, or whose network's, holds this, in any case.
        sort: By what; a minus puts the largest first. Jobs that tie come by their numbers.
        after: The last job of the page before: what it is sorted by, and its number.
        limit: Jobs on the page, at most.
    """
    wanted = select(Job).where(~Job.hidden).outerjoin(Network, Network.id == Job.network_id)
    if states:
        wanted = wanted.where(Job.state.in_(states))
    if text:
        wanted = wanted.where(
            Job.name.icontains(text, autoescape=True)
            | Network.name.icontains(text, autoescape=True)
        )
    column, falls = _SORTED_BY[sort.lstrip("-")], sort.startswith("-")
    if after is not None:
        value, number = after
        said = func.lower(value) if column is _NAME else value
        beyond = column < said if falls else column > said
        later = Job.id < number if falls else Job.id > number
        wanted = wanted.where(beyond | ((column == said) & later))
    order = (column.desc(), Job.id.desc()) if falls else (column, Job.id)
    return summaries(session, list(session.scalars(wanted.order_by(*order).limit(limit))))


def summaries(session: Session, found: Sequence[Job]) -> list[JobSummary]:
    """Describe jobs as a list shows them."""
    ids = [job.id for job in found]
    wanted = select(JobStatus).where(JobStatus.job_id.in_(ids))
    statuses = {status.job_id: status for status in session.scalars(wanted)}
    own = task_stats.trials_of_jobs(session, ids)
    totals = network_latencies(session, ids)
    rows = []
    for job in found:
        status, n_own = statuses.get(job.id), own.get(job.id, 0)
        spent = max(n_own, 0 if status is None else status.spent_trials)
        rows.append(_summary(session, job, status, n_own, spent, totals.get(job.id)))
    return rows


def read_picks(
    session: Session, job_id: int, *, before: int | None = None, limit: int = 50
) -> list[PickView]:
    """Return picks of a job, the newest first: those before a number, at most ``limit``.

    Raises:
        NoSuchRow: If there is no such job.
    """
    weighted = tasks.tasks_of_job(session, jobs.get_job(session, job_id))
    wanted = select(*_SHOWN).where(Pick.job_id == job_id).order_by(Pick.sequence.desc())
    if before is not None:
        wanted = wanted.where(Pick.sequence < before)
    rows = _rows(weighted)
    return [_view_pick(pick, weighted, rows) for pick in session.execute(wanted.limit(limit))]


def view_pick(pick: Pick, weighted: Sequence[WeightedTask]) -> PickView:
    """Describe a pick of a job whose tasks these are."""
    return _view_pick(pick, weighted, _rows(weighted))


def _rows(weighted: Sequence[WeightedTask]) -> dict[int, int]:
    return {task.task_id: index for index, task in enumerate(weighted)}


def _view_pick(pick: Any, weighted: Sequence[WeightedTask], rows: Mapping[int, int]) -> PickView:
    index = rows.get(pick.task_id)
    return PickView(
        sequence=pick.sequence,
        task=index,
        task_id=pick.task_id,
        task_name="" if index is None else weighted[index].name,
        n_trials=pick.n_trials,
        reason=str(pick.terms.get("reason", "")),
        why=explain(pick.terms),
        terms=pick.terms,
        done=pick.done,
        n_measured=pick.n_measured,
        n_failed=pick.n_failed,
        secs=pick.secs,
        total_latency_secs=pick.total_secs,
        created=pick.created,
    )


def read_failures(session: Session, job_id: int) -> list[FailureView]:
    """Return how the trials of a job failed, the most frequent way first."""
    rows = session.execute(
        select(JobFailure, MeasureRecord.error_text, MeasureRecord.worker)
        .join(MeasureRecord, MeasureRecord.id == JobFailure.record_id)
        .where(JobFailure.job_id == job_id)
        .order_by(JobFailure.n_trials.desc(), JobFailure.error_kind)
    )
    return [
        FailureView(row.error_kind, row.n_trials, row.record_id, text or "", worker)
        for row, text, worker in rows
    ]


def read_history(
    session: Session, job_id: int, *, n_points: int = 300, n_tasks: int = 12
) -> HistoryView:
    """Return the latency of a job's network over its trials and seconds, and who got them.

    Args:
        session: The transaction.
        job_id: The job.
        n_points: Points, at most about so many; the last round is always one.
        n_tasks: Tasks that are told apart, those with most trials; the others are added up.

    Raises:
        NoSuchRow: If there is no such job.
    """
    weighted = tasks.tasks_of_job(session, jobs.get_job(session, job_id))
    mine = (Pick.job_id == job_id, Pick.done)
    got = _trials(session, mine)
    last = session.scalar(select(func.max(Pick.sequence)).where(*mine)) or 0
    step = max(-(-last // n_points), 1)
    shown = _busiest(weighted, got, n_tasks)
    # Rounds 1 to step are the first point, and so on: the bucket of a round is the point after it.
    bucket = (Pick.sequence + (step - 1)) // step
    told_apart = case((Pick.task_id.in_([weighted[i].task_id for i in shown]), Pick.task_id))
    sums = session.execute(
        select(bucket, told_apart, func.sum(Pick.n_measured), func.sum(Pick.secs))
        .where(*mine)
        .group_by(bucket, told_apart)
    ).all()
    ends = {
        (sequence + step - 1) // step: (sequence, total)
        for sequence, total in session.execute(
            select(Pick.sequence, Pick.total_secs).where(
                *mine, Pick.sequence.in_([*range(step, last, step), last])
            )
        )
    }
    return _history(job_id, weighted, shown, sums, ends)


def _trials(session: Session, mine: Sequence[Any]) -> dict[int, int]:
    rows = session.execute(
        select(Pick.task_id, func.sum(Pick.n_measured)).where(*mine).group_by(Pick.task_id)
    )
    return {task_id: n for task_id, n in rows}  # noqa: C416  rows are not pairs to mypy


def _busiest(
    weighted: Sequence[WeightedTask], trials: Mapping[int, int], n_tasks: int
) -> list[int]:
    """Return the rows of the tasks with most trials; ties go to the first."""
    got = [trials.get(task.task_id, 0) for task in weighted]
    ranked = sorted(range(len(weighted)), key=lambda row: -got[row])
    return [row for row in ranked[:n_tasks] if got[row]]


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
    given = np.zeros((len(shown) + 1, len(buckets)), np.int64)
    secs = np.zeros(len(buckets))
    for bucket, task_id, n_measured, took in sums:
        given[line.get(task_id, len(shown)), column[bucket]] += n_measured
        secs[column[bucket]] += took or 0.0
    given, secs = given.cumsum(axis=1), secs.cumsum()
    points = [
        HistoryPoint(
            pick=ends.get(bucket, (0, None))[0],
            trials=int(given[:, i].sum()),
            secs=float(secs[i]),
            total_latency_secs=ends.get(bucket, (0, None))[1],
        )
        for i, bucket in enumerate(buckets)
    ]
    lines = [TaskTrials(row, weighted[row].name, given[i].tolist()) for i, row in enumerate(shown)]
    if buckets and given[-1, -1]:
        lines.append(TaskTrials(None, "other tasks", given[-1].tolist()))
    return HistoryView(job_id, points, lines)


def _summary(
    session: Session,
    job: Job,
    status: JobStatus | None,
    own: int,
    spent: int,
    total_secs: float | None,
) -> JobSummary:
    network = None if job.network_id is None else session.get_one(Network, job.network_id)
    target = None if job.target_id is None else session.get_one(Target, job.target_id)
    return JobSummary(
        id=job.id,
        name=job.name or (network.name if network else f"job {job.id}"),
        state=job.state,
        message=job.message,
        phase=status.phase if status is not None and job.state == "running" else None,
        network_id=job.network_id,
        network=network.name if network else None,
        target_id=job.target_id,
        target=target.spec if target else None,
        device=str(target.device.get("name", "")) if target else None,
        objective=job.objective,
        seed=job.seed,
        priority=job.priority,
        budget_trials=job.budget_trials,
        budget_secs=job.budget_secs,
        trials=own,
        spent_trials=spent,
        spent_secs=job.spent_secs,
        total_latency_secs=total_secs,
        n_events=job.n_events,
        from_service=job.submission != "",
        created=job.created,
        updated=job.updated,
    )


def _split(session: Session, job: Job) -> SplitView | None:
    if job.network_id is None or job.target_id is None:
        return None
    extraction = networks.extraction_of(session, job.network_id, job.target_id)
    return SplitView(
        sha256=session.get_one(Network, job.network_id).sha256,
        kernel_calls=extraction.n_kernel_calls if extraction else None,
        notes=extraction.notes if extraction else [],
        device=session.get_one(Target, job.target_id).device,
    )


def _lines(
    session: Session, job: Job, status: JobStatus | None, weighted: Sequence[WeightedTask]
) -> list[TaskView]:
    if not weighted:
        return []
    task_ids = [task.task_id for task in weighted]
    standing = task_stats.of_tasks(session, job.id, task_ids)
    best = bests.best_latencies(session, task_ids)
    latencies = np.array([best.get(task_id, math.inf) for task_id in task_ids], dtype=float)
    shares = estimate.shares(
        np.array([task.weight for task in weighted], dtype=np.int64), latencies
    )
    exhausted = _exhausted(session, [stands.newest for stands in standing.values()])
    mine = _shown_picks(session, [stands.own for stands in standing.values()])
    rows = _rows(weighted)
    gains = {} if status is None else status.gains
    lines = []
    for i, task in enumerate(weighted):
        latency = best.get(task.task_id)
        own = mine.get(task.task_id)
        n_trials, n_failed, *_ = standing[task.task_id]
        lines.append(
            TaskView(
                id=i,
                task_id=task.task_id,
                workload=task.workload_hash,
                name=task.name,
                weight=task.weight,
                flop=task.flop,
                latency_secs=latency,
                gflops=task.flop / latency / 1e9 if latency else 0.0,
                share=float(shares[i]),
                trials=n_trials,
                failed=n_failed,
                exhausted=task.task_id in exhausted,
                gradient=gains.get(str(task.task_id)),
                running=own is not None and not own.done and job.state == "running",
                last_pick=None if own is None else _view_pick(own, weighted, rows),
            )
        )
    return lines


def _shown_picks(session: Session, ids: Sequence[int | None]) -> dict[int, Any]:
    """Return what is shown of picks, by task; rows, for objects cost more than their reading."""
    wanted = [pick_id for pick_id in ids if pick_id is not None]
    rows = session.execute(select(*_SHOWN).where(Pick.id.in_(wanted)))
    return {row.task_id: row for row in rows}


def _exhausted(session: Session, newest: Sequence[int | None]) -> set[int]:
    """Return the tasks whose last round, one of these, searched and found nothing to try."""
    wanted = [pick_id for pick_id in newest if pick_id is not None]
    rows = session.execute(
        select(Pick.task_id, Pick.terms).where(Pick.id.in_(wanted), Pick.n_measured == 0)
    )
    return {task_id for task_id, terms in rows if "failed" not in terms}
