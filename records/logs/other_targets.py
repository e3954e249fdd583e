"""Records of a workload on other targets: earlier versions, other devices, imported logs."""

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


class BestOnTarget(NamedTuple):
    """The best record of a workload on a target; ``latency`` is its winning latency, seconds."""

    workload_id: int
    workload: str
    name: str
    engine: str
    task_id: int
    target_id: int
    record_id: int
    latency: float


class RecordedTrace(NamedTuple):
    """A recorded trace that can be measured again; ``latency`` is its median, seconds."""

    record_id: int
    trace: str
    trace_hash: str
    module_hash: str | None
    latency: float
    features: bytes | None
    origin: str | None


def all_targets(session: Session) -> list[Target]:
    """Return every target, the oldest first."""
    return list(session.scalars(select(Target).order_by(Target.id)))


def bests_of_targets(
    session: Session, target_ids: Collection[int], workload_ids: Collection[int] | None = None
) -> list[BestOnTarget]:
    """Return the best records of targets, for some or all workloads, in the order of tasks."""
    stmt = _of_tasks(BestRecord.record_id, BestRecord.latency, target_ids, workload_ids)
    stmt = stmt.join(BestRecord, BestRecord.task_id == Task.id)
    return [BestOnTarget(*row) for row in session.execute(stmt)]


def fastest_of_targets(
    session: Session, target_ids: Collection[int], workload_ids: Collection[int] | None = None
) -> list[BestOnTarget]:
    """Return the fastest record of each task, verified or not; see :func:`bests_of_targets`."""
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
    stmt = _of_tasks(MeasureRecord.id, latency, target_ids, workload_ids)
    stmt = stmt.join(MeasureRecord, MeasureRecord.id == fastest)
    return [BestOnTarget(*row) for row in session.execute(stmt)]


def _of_tasks(
    record_id: ColumnElement[int] | InstrumentedAttribute[int],
    latency: ColumnElement[float] | InstrumentedAttribute[float],
    target_ids: Collection[int],
    workload_ids: Collection[int] | None,
) -> Select[*tuple[Any, ...]]:
    """Select the fields of :class:`BestOnTarget` by task; the caller joins the records."""
    task = (Task.workload_id, Workload.hash, Workload.name, Workload.engine, Task.id)
    stmt = (
        select(*task, Task.target_id, record_id, latency)
        .select_from(Task)
        .join(Workload, Workload.id == Task.workload_id)
        .where(Task.target_id.in_(target_ids))
        .order_by(Task.id)
    )
    return stmt if workload_ids is None else stmt.where(Task.workload_id.in_(workload_ids))


def ranked(
    session: Session, task_id: int, k: int, here: int | None = None, *, verified: bool = True
) -> list[RecordedTrace]:
    """Return ``k`` records of a task: the best record, then by latency; ties go to the oldest.

    Args:
        k: Number of records, at least 1.
        here: Task of the same workload; traces that failed there are skipped.
        verified: If true, only verified records; otherwise all that ran.
    """
    failed = select(MeasureRecord.trace_hash).where(
        MeasureRecord.task_id == here, MeasureRecord.verified.is_(False)
    )
    best = select(BestRecord.record_id).where(BestRecord.task_id == task_id)
    stmt = (
        select(
            MeasureRecord.id,
            MeasureRecord.trace,
            MeasureRecord.trace_hash,
            MeasureRecord.module_hash,
            MeasureRecord.latency,
            MeasureFeature.features,
            MeasureRecord.origin,
        )
        .outerjoin(MeasureFeature, MeasureFeature.record_id == MeasureRecord.id)
        .where(
            MeasureRecord.task_id == task_id,
            MeasureRecord.verified if verified else MeasureRecord.latency.is_not(None),
            MeasureRecord.trace_hash.not_in(failed),
        )
    )
    others = stmt.where(MeasureRecord.id.not_in(best))
    fastest = others.order_by(MeasureRecord.latency, MeasureRecord.id).limit(k)
    rows = [*session.execute(stmt.where(MeasureRecord.id.in_(best))), *session.execute(fastest)]
    return [RecordedTrace(*row) for row in rows[:k]]


def known_traces(session: Session, task_id: int, trace_hashes: Collection[str]) -> set[str]:
    """Return the subset of trace hashes that a task has a record of."""
    stmt = select(MeasureRecord.trace_hash).where(
        MeasureRecord.task_id == task_id, MeasureRecord.trace_hash.in_(trace_hashes)
    )
    return set(session.scalars(stmt))


def traces_of_spec(session: Session, task_id: int, spec: str) -> list[str]:
    """Return the traces of variants that any device measured for the workload of a task.

    Args:
        spec: Canonical JSON of the target of these devices.
    """
    workload_id = session.get_one(Task, task_id).workload_id
    stmt = (
        select(MeasureRecord.trace)
        .join(Task, Task.id == MeasureRecord.task_id)
        .join(Target, Target.id == Task.target_id)
        .where(
            Task.workload_id == workload_id,
            Target.spec == spec,
            MeasureRecord.trace.startswith('{"variant":'),
        )
    )
    return list(session.scalars(stmt))


def tasks_of_target(
    session: Session, target_id: int, workload_ids: Collection[int]
) -> dict[int, int]:
    """Return the tasks of workloads on a target, by workload."""
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
    """Add up the weights of each workload over the networks extracted for these targets.

    A network that was extracted for several of them counts once; a union does not count.
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
    """Return a setting of the newest job that has it, on the first target with such a job."""
    for target_id in target_ids:
        stmt = select(Job.settings).where(Job.target_id == target_id).order_by(Job.id.desc())
        for settings in session.scalars(stmt):
            if name in settings:
                return settings[name]
    return None


def task_of_workload(session: Session, workload: str, engine: str) -> int | None:
    """Return a task of a workload, given by its hash, on any target; None if unknown."""
    stmt = select(Task.id).join(Workload, Workload.id == Task.workload_id)
    stmt = stmt.where(Workload.hash == workload, Workload.engine == engine)
    return session.scalars(stmt.order_by(Task.id).limit(1)).first()


def trace_text(session: Session, workload: str, engine: str, trace_hash: str) -> str | None:
    """Return a measured trace of a workload, by its hash, on any target; None if unknown."""
    stmt = (
        select(MeasureRecord.trace)
        .join(Task, Task.id == MeasureRecord.task_id)
        .join(Workload, Workload.id == Task.workload_id)
        .where(
            Workload.hash == workload,
            Workload.engine == engine,
            MeasureRecord.trace_hash == trace_hash,
        )
    )
    return session.scalars(stmt.limit(1)).first()
