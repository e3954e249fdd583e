"""Workloads, tasks, and their weights in a network."""

from dataclasses import dataclass

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import Job, NetworkTask, Task, Workload
from records.text import storable
from records.upsert import find_or_insert


@dataclass(frozen=True, kw_only=True)
class NewWorkload:
    """A subgraph extracted by an engine.

    Attributes:
        hash: Structural hash of the IR.
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
    """A task of a network: ``weight`` calls in one inference, ``flop`` operations in a call."""

    task_id: int
    workload_hash: str
    name: str
    weight: int
    flop: float
    engine: str


def ensure_workload(session: Session, workload: NewWorkload) -> Workload:
    """Return the row of a workload, inserting it if it is new."""
    key = {"hash": workload.hash, "engine": workload.engine}
    values = {"ir": workload.ir, "flop": workload.flop, "name": storable(workload.name)}
    return find_or_insert(session, Workload, key, values)


def ensure_task(session: Session, workload_id: int, target_id: int) -> Task:
    """Return the task of a workload on a target, inserting it if it is new."""
    return find_or_insert(session, Task, {"workload_id": workload_id, "target_id": target_id}, {})


def weighted_tasks(session: Session, network_id: int, target_id: int) -> list[WeightedTask]:
    """Return the tasks of a network on a target, in the order of the network."""
    rows = session.execute(
        select(
            Task.id,
            Workload.hash,
            Workload.name,
            NetworkTask.weight,
            Workload.flop,
            Workload.engine,
        )
        .join(NetworkTask, NetworkTask.task_id == Task.id)
        .join(Workload, Workload.id == Task.workload_id)
        .where(NetworkTask.network_id == network_id, Task.target_id == target_id)
        .order_by(NetworkTask.position)
    )
    return [
        WeightedTask(
            task_id=task_id,
            workload_hash=workload_hash,
            name=name,
            weight=weight,
            flop=flop,
            engine=engine,
        )
        for task_id, workload_hash, name, weight, flop, engine in rows
    ]


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


# The statement is built once: building takes longer than the database takes to answer.
_WORKLOAD_IR = select(Workload.ir).join(Task).where(Task.id == bindparam("of_task"))
