"""Workloads, tasks, and their weights in a network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, SQLColumnExpression, bindparam, literal, select, update
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.logs import workload_names
from records.models import Job, NetworkTask, Target, Task, Workload
from records.storage.text import storable
from records.storage.upsert import find_or_insert, table


@dataclass(frozen=True, kw_only=True)
class NewWorkload:
    """A subgraph extracted by an engine.

    Attributes:
        hash: Name of the workload: SHA-256 of the IR, see :mod:`records.logs.workload_names`.
        engine: Engine that produced the IR.
        ir: IR, serialised by that engine.
        flop: Floating-point operations in one call.
        name: Display name, not unique.
    """

    hash: str
    engine: str
    ir: bytes
    flop: float
    name: str


@dataclass(frozen=True, kw_only=True)
class WeightedTask:
    """A task of a network.

    Attributes:
        name: Display name of its workload.
        weight: Calls in one inference.
        flop: Floating-point operations of one call.
        engine: Engine of its workload.
        profile: Profile of its workload by the engine; None if unknown.
        peaks: Measured peaks of its target's device; None if unknown.
    """

    task_id: int
    workload_hash: str
    name: str
    weight: int
    flop: float
    engine: str
    profile: Mapping[str, Any] | None = None
    peaks: Mapping[str, Any] | None = None


def ensure_workload(session: Session, workload: NewWorkload) -> Workload:
    """Return the row of a workload, inserting it if it is new.

    Raises:
        WrongName: If its name is that of other IR.
    """
    workload_names.check(workload.hash, workload.ir)
    key = {"hash": workload.hash, "engine": workload.engine}
    values = {"ir": workload.ir, "flop": workload.flop, "name": storable(workload.name)}
    return find_or_insert(session, Workload, key, values)


def full_name(session: Session, beginning: str) -> str:
    """Return the name of the only workload whose name begins so; else the text itself."""
    names = names_from(session, beginning) if workload_names.is_beginning(beginning) else []
    return names[0] if len(names) == 1 else beginning


def names_from(session: Session, beginning: str, limit: int = 2) -> Sequence[str]:
    """Return the first names of workloads that begin so, a whole name alone."""
    names = Workload.hash == beginning
    if workload_names.is_beginning(beginning):
        # Unlike LIKE, a range is found by the index.
        names = (Workload.hash >= beginning) & (Workload.hash < beginning + "g")
    return session.scalars(select(Workload.hash).where(names).distinct().limit(limit)).all()


def ensure_task(session: Session, workload_id: int, target_id: int) -> Task:
    """Return the task of a workload on a target, inserting it if it is new."""
    return find_or_insert(session, Task, {"workload_id": workload_id, "target_id": target_id}, {})


def weighted_tasks(session: Session, network_id: int, target_id: int) -> list[WeightedTask]:
    """Return the tasks of a network on a target, in the order of the network."""
    rows = session.execute(
        _with_workloads(NetworkTask.weight)
        .join(NetworkTask, NetworkTask.task_id == Task.id)
        .where(NetworkTask.network_id == network_id, Task.target_id == target_id)
        .order_by(NetworkTask.position)
    )
    return [WeightedTask(**row) for row in rows.mappings()]


def tasks_of_target(
    session: Session, target: str, engine: str, calls: Mapping[str, int]
) -> list[WeightedTask]:
    """Return the tasks of workloads on a target; those without one are left out.

    Args:
        target: Fingerprint of the target.
        calls: Calls in one inference by hash of the workload.
    """
    rows = session.execute(
        _with_workloads(literal(0)).where(
            Target.fingerprint == target, Workload.engine == engine, Workload.hash.in_(calls)
        )
    )
    return [
        WeightedTask(**{**row, "weight": calls[row["workload_hash"]]}) for row in rows.mappings()
    ]


def _with_workloads(weight: SQLColumnExpression[int]) -> Select[Any]:
    """Select tasks with their workloads and targets, under the names of a weighted task."""
    return (
        select(
            Task.id.label("task_id"),
            Workload.hash.label("workload_hash"),
            Workload.name,
            weight.label("weight"),
            Workload.flop,
            Workload.engine,
            Workload.profile,
            Target.peaks,
        )
        .join(Workload, Workload.id == Task.workload_id)
        .join(Target, Target.id == Task.target_id)
    )


def without_profile(session: Session, network_id: int, target_id: int) -> dict[int, bytes]:
    """Return the IR of the workloads of a network that have no profile, by the workload's id."""
    rows = session.execute(
        select(Workload.id, Workload.ir)
        .join(Task, Task.workload_id == Workload.id)
        .join(NetworkTask, NetworkTask.task_id == Task.id)
        .where(
            NetworkTask.network_id == network_id,
            Task.target_id == target_id,
            Workload.profile.is_(None),
        )
        .order_by(Workload.id)
    )
    return {workload_id: ir for workload_id, ir in rows}  # noqa: C416  rows are not pairs to mypy


def store_profiles(session: Session, profiles: Mapping[int, dict[str, Any]]) -> None:
    """Store the profiles of workloads, by id."""
    for workload_id, profile in profiles.items():
        session.execute(update(Workload).where(Workload.id == workload_id).values(profile=profile))


def tasks_of_job(session: Session, job: Job) -> list[WeightedTask]:
    """Return the tasks of a job's network; an empty list before its model is loaded."""
    if job.network_id is None or job.target_id is None:
        return []
    return weighted_tasks(session, job.network_id, job.target_id)


def workload_ir(session: Session, task_id: int) -> bytes:
    """Return the IR of a task's workload.

    Raises:
        NoSuchRow: If the task does not exist.
    """
    ir: bytes | None = session.scalar(_WORKLOAD_IR, {"of_task": task_id})
    if ir is None:
        raise NoSuchRow(f"no task {task_id}")
    return ir


# The statement is built once, and on tables: building, and the ORM's work, take longer than the
# database takes to answer.
_WORKLOAD_IR = (
    select(table(Workload).c.ir)
    .join(table(Task), table(Task).c.workload_id == table(Workload).c.id)
    .where(table(Task).c.id == bindparam("of_task"))
)
