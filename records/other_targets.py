"""Records of other versions and devices: what was measured of a workload before an upgrade."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from records.models import (
    BestRecord,
    Extraction,
    Job,
    MeasureFeature,
    MeasureRecord,
    NetworkTask,
    Target,
    Task,
    Workload,
)


class BestThere(NamedTuple):
    """The best record of a workload on some target; ``latency`` in seconds is what it won with."""

    workload_id: int
    workload: str
    name: str
    engine: str
    task_id: int
    target_id: int
    record_id: int
    latency: float


class Replay(NamedTuple):
    """What measuring a record again takes; ``latency`` is the median of its samples, seconds."""

    record_id: int
    trace: str
    trace_hash: str
    module_hash: str | None
    latency: float
    features: bytes | None


def all_targets(session: Session) -> list[Target]:
    """Return every target, the oldest first; there are few."""
    return list(session.scalars(select(Target).order_by(Target.id)))


def bests_of_targets(
    session: Session, target_ids: Collection[int], workload_ids: Collection[int] | None = None
) -> list[BestThere]:
    """Return the best records of targets, of some workloads or of all, in the order of tasks."""
    wanted = _of_tasks(BestRecord.record_id, BestRecord.latency, target_ids, workload_ids)
    wanted = wanted.join(BestRecord, BestRecord.task_id == Task.id)
    return [BestThere(*row) for row in session.execute(wanted)]


def fastest_of_targets(
    session: Session, target_ids: Collection[int], workload_ids: Collection[int] | None = None
) -> list[BestThere]:
    """Return, as :func:`bests_of_targets`, the fastest record of each task, verified or not."""
    timed = aliased(MeasureRecord)
    fastest = (
        select(timed.id)
        .where(timed.task_id == Task.id, timed.latency.is_not(None))
        .order_by(timed.latency, timed.id)
        .limit(1)
        .correlate(Task)
        .scalar_subquery()
    )
    latency = func.coalesce(MeasureRecord.latency, 0.0)
    wanted = _of_tasks(MeasureRecord.id, latency, target_ids, workload_ids)
    wanted = wanted.join(MeasureRecord, MeasureRecord.id == fastest)
    return [BestThere(*row) for row in session.execute(wanted)]


def _of_tasks(
    record_id: ColumnElement[int] | InstrumentedAttribute[int],
    latency: ColumnElement[float] | InstrumentedAttribute[float],
    target_ids: Collection[int],
    workload_ids: Collection[int] | None,
) -> Select[*tuple[Any, ...]]:
    """Select what :class:`BestThere` has, in the order of tasks; records are to be joined."""
    task = (Task.workload_id, Workload.hash, Workload.name, Workload.engine, Task.id)
    wanted = (
        select(*task, Task.target_id, record_id, latency)
        .select_from(Task)
        .join(Workload, Workload.id == Task.workload_id)
        .where(Task.target_id.in_(target_ids))
        .order_by(Task.id)
    )
    return wanted if workload_ids is None else wanted.where(Task.workload_id.in_(workload_ids))


def ranked(
    session: Session, task_id: int, k: int, here: int | None = None, *, verified: bool = True
) -> list[Replay]:
    """Return ``k`` records of a task: the best, then the fastest; ties to the oldest.

    Args:
        session: The transaction.
        task_id: The task.
        k: How many, at least 1.
        here: A task of the same workload; traces that failed there are passed over.
        verified: Only verified records; else all that ran.
    """
    failed = select(MeasureRecord.trace_hash).where(
        MeasureRecord.task_id == here, MeasureRecord.verified.is_(False)
    )
    best = select(BestRecord.record_id).where(BestRecord.task_id == task_id)
    wanted = (
        select(
            MeasureRecord.id,
            MeasureRecord.trace,
            MeasureRecord.trace_hash,
            MeasureRecord.module_hash,
            MeasureRecord.latency,
            MeasureFeature.features,
        )
        .outerjoin(MeasureFeature, MeasureFeature.record_id == MeasureRecord.id)
        .where(
            MeasureRecord.task_id == task_id,
            MeasureRecord.verified if verified else MeasureRecord.latency.is_not(None),
            MeasureRecord.trace_hash.not_in(failed),
        )
    )
    others = wanted.where(MeasureRecord.id.not_in(best))
    fastest = others.order_by(MeasureRecord.latency, MeasureRecord.id).limit(k)
    rows = [*session.execute(wanted.where(MeasureRecord.id.in_(best))), *session.execute(fastest)]
    return [Replay(*row) for row in rows[:k]]


def known_traces(session: Session, task_id: int, trace_hashes: Collection[str]) -> set[str]:
    """Return which of these traces a task has a record of."""
    wanted = select(MeasureRecord.trace_hash).where(
        MeasureRecord.task_id == task_id, MeasureRecord.trace_hash.in_(trace_hashes)
    )
    return set(session.scalars(wanted))


def tasks_of_target(
    session: Session, target_id: int, workload_ids: Collection[int]
) -> dict[int, int]:
    """Return the tasks that a target has of workloads, by workload."""
    rows = session.execute(
        select(Task.workload_id, Task.id).where(
            Task.target_id == target_id, Task.workload_id.in_(workload_ids)
        )
    )
    return {workload_id: task_id for workload_id, task_id in rows}  # noqa: C416  rows are not pairs to mypy


def workload_ids(session: Session, task_ids: Collection[int]) -> dict[int, int]:
    """Return the workload of each task."""
    rows = session.execute(select(Task.id, Task.workload_id).where(Task.id.in_(task_ids)))
    return {task_id: workload_id for task_id, workload_id in rows}  # noqa: C416  rows are not pairs to mypy


def workload_weights(session: Session, target_ids: Collection[int]) -> dict[int, int]:
    """Add up how often the networks that were split for these targets call each workload.

    A network that was split for several of them counts once; one made of others does not.
    """
    of_network = (
        select(
            Task.workload_id.label("workload_id"),
            func.max(NetworkTask.weight).label("weight"),
        )
        .join(NetworkTask, NetworkTask.task_id == Task.id)
        .join(
            Extraction,
            (Extraction.network_id == NetworkTask.network_id)
            & (Extraction.target_id == Task.target_id),
        )
        .where(Task.target_id.in_(target_ids))
        .group_by(Task.workload_id, NetworkTask.network_id)
        .subquery()
    )
    summed = select(of_network.c.workload_id, func.sum(of_network.c.weight))
    rows = session.execute(summed.group_by(of_network.c.workload_id))
    return {workload_id: int(weight) for workload_id, weight in rows}


def newest_setting(session: Session, target_ids: Sequence[int], name: str) -> Any:
    """Return a setting of the newest job of the first of these targets that has one, or None."""
    for target_id in target_ids:
        wanted = select(Job.settings).where(Job.target_id == target_id).order_by(Job.id.desc())
        for settings in session.scalars(wanted):
            if name in settings:
                return settings[name]
    return None


def task_of_workload(session: Session, workload: str, engine: str) -> int | None:
    """Return a task of a workload, given by its hash, on whatever target; None if unknown."""
    wanted = select(Task.id).join(Workload, Workload.id == Task.workload_id)
    wanted = wanted.where(Workload.hash == workload, Workload.engine == engine)
    return session.scalars(wanted.order_by(Task.id).limit(1)).first()


def trace_text(session: Session, workload: str, engine: str, trace_hash: str) -> str | None:
    """Return a trace of a workload that was ever measured, on whatever target; None if unknown."""
    wanted = (
        select(MeasureRecord.trace)
        .join(Task, Task.id == MeasureRecord.task_id)
        .join(Workload, Workload.id == Task.workload_id)
        .where(
            Workload.hash == workload,
            Workload.engine == engine,
            MeasureRecord.trace_hash == trace_hash,
        )
    )
    return session.scalars(wanted.limit(1)).first()
