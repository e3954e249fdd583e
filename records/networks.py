"""Networks and their extractions into tasks."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from records.models import Extraction, Network, NetworkTask, Task
from records.storage.text import storable
from records.storage.upsert import find_or_insert, insert
from records.tasks import NewWorkload, ensure_task, ensure_workload


def ensure_network(session: Session, sha256: str, name: str, inputs: dict[str, Any]) -> Network:
    """Return the row of a network, inserting it if it is new.

    Args:
        sha256: Hash, in hex, of the cleaned model with its fixed shapes.
        name: Display name; the first one given stays.
        inputs: ``{name: {"shape": [...], "dtype": "float32"}}``.
    """
    values = {"name": storable(name), "inputs": inputs}
    return find_or_insert(session, Network, {"sha256": sha256}, values)


def record_extraction(  # noqa: PLR0913, PLR0917  all columns of one row
    session: Session,
    network_id: int,
    target_id: int,
    tasks: Sequence[tuple[NewWorkload, int]],
    n_kernel_calls: int,
    notes: Sequence[str] = (),
    extra: dict[str, Any] | None = None,
) -> None:
    """Store the tasks of a network on a target; the first extraction stays.

    Args:
        tasks: Workloads with their weights (at least 1) in the order of the network; a workload
            listed twice becomes one task with the sum of the weights.
        n_kernel_calls: Kernel calls in one inference, tuned or not.
        notes: Remarks for people, such as operators left untuned.
        extra: Further data that the engine needs later.
    """
    if extraction_of(session, network_id, target_id) is not None:
        return
    weights: dict[tuple[str, str], int] = {}
    workloads = {}
    for workload, weight in tasks:
        key = (workload.hash, workload.engine)
        workloads[key] = workload
        weights[key] = weights.get(key, 0) + weight
    # Sorted, so that two extractions that share workloads lock them in the same order.
    task_ids = {}
    for key in sorted(workloads):
        workload_id = ensure_workload(session, workloads[key]).id
        task_ids[key] = ensure_task(session, workload_id, target_id).id
    for position, (key, weight) in enumerate(weights.items()):
        stmt = insert(session, NetworkTask).values(
            network_id=network_id, task_id=task_ids[key], weight=weight, position=position
        )
        session.execute(stmt.on_conflict_do_nothing())
    stmt = insert(session, Extraction).values(
        network_id=network_id,
        target_id=target_id,
        notes=list(notes),
        n_kernel_calls=n_kernel_calls,
        extra=extra or {},
    )
    session.execute(stmt.on_conflict_do_nothing())


def ensure_union(
    session: Session,
    sha256: str,
    name: str,
    target_id: int,
    member_ids: Sequence[int],
    task_ids: Sequence[int] | None = None,
) -> Network:
    """Return the union of several networks, inserting it if it is new.

    Its tasks on the target are those of all members, each with the sum of its weights.

    Args:
        sha256: Identifier of the set of members.
        name: Display name.
        target_id: Target that all members were extracted for.
        member_ids: Networks to combine.
        task_ids: Tasks to keep of them; None for all.
    """
    network = ensure_network(session, sha256, name, {})
    tasks = (
        select(
            NetworkTask.task_id,
            func.sum(NetworkTask.weight),
            func.min(NetworkTask.network_id),
            func.min(NetworkTask.position),
        )
        .join(Task, Task.id == NetworkTask.task_id)
        .where(NetworkTask.network_id.in_(member_ids), Task.target_id == target_id)
        .group_by(NetworkTask.task_id)
    )
    if task_ids is not None:
        tasks = tasks.where(NetworkTask.task_id.in_(task_ids))
    rows = sorted(session.execute(tasks).all(), key=lambda row: tuple(row[2:]))
    for position, (task_id, weight, *_) in enumerate(rows):
        stmt = insert(session, NetworkTask).values(
            network_id=network.id, task_id=task_id, weight=int(weight), position=position
        )
        session.execute(stmt.on_conflict_do_nothing())
    return network


def extraction_of(session: Session, network_id: int, target_id: int) -> Extraction | None:
    """Return the extraction of a network for a target, or None."""
    return session.get(Extraction, (network_id, target_id))
