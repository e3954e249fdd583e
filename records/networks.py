"""Networks, and the marks that they were split into tasks."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from records.models import Extraction, Network, NetworkTask, Task
from records.tasks import NewWorkload, ensure_task, ensure_workload
from records.text import storable
from records.upsert import find_or_insert, insert


def ensure_network(session: Session, sha256: str, name: str, inputs: dict[str, Any]) -> Network:
    """Return the row of a network, inserting it if it is new.

    Args:
        session: The transaction.
        sha256: Hash, in hex, of the cleaned model with its fixed shapes.
        name: For people; the first one given stays.
        inputs: ``{name: {"shape": [...], "dtype": "float32"}}``.
    """
    values = {"name": storable(name), "inputs": inputs}
    return find_or_insert(session, Network, {"sha256": sha256}, values)


def record_extraction(  # noqa: PLR0913, PLR0917  one fact, told once
    session: Session,
    network_id: int,
    target_id: int,
    tasks: Sequence[tuple[NewWorkload, int]],
    n_kernel_calls: int,
    notes: Sequence[str] = (),
    extra: dict[str, Any] | None = None,
) -> None:
    """Store how a network splits into tasks; the first extraction stays.

    Args:
        session: The transaction.
        network_id: The network.
        target_id: The target it was extracted for.
        tasks: Workloads with their weights (at least 1) in the network's own
            order; a workload listed twice is one task with the sum of the weights.
        n_kernel_calls: Kernel calls in one inference, tuned or not.
        notes: What a person should know, such as operators left untuned.
        extra: Anything else an engine wants back.
    """
    if extraction_of(session, network_id, target_id) is not None:
        return
    weights: dict[tuple[str, str], int] = {}
    workloads = {}
    for workload, weight in tasks:
        key = (workload.hash, workload.engine)
        workloads[key] = workload
        weights[key] = weights.get(key, 0) + weight
    # Sorted, so that two extractions sharing workloads lock them in one order.
    task_ids = {}
    for key in sorted(workloads):
        workload_id = ensure_workload(session, workloads[key]).id
        task_ids[key] = ensure_task(session, workload_id, target_id).id
    for position, (key, weight) in enumerate(weights.items()):
        row = insert(session, NetworkTask).values(
            network_id=network_id, task_id=task_ids[key], weight=weight, position=position
        )
        session.execute(row.on_conflict_do_nothing())
    mark = insert(session, Extraction).values(
        network_id=network_id,
        target_id=target_id,
        notes=list(notes),
        n_kernel_calls=n_kernel_calls,
        extra=extra or {},
    )
    session.execute(mark.on_conflict_do_nothing())


def ensure_union(
    session: Session, sha256: str, name: str, target_id: int, member_ids: Sequence[int]
) -> Network:
    """Return a network made of others, inserting it if it is new.

    Its tasks on the target are those of all members, each with the sum of its weights.

    Args:
        session: The transaction.
        sha256: Identifies the set of members.
        name: For people.
        target_id: The target that all members were extracted for.
        member_ids: The networks it is made of.
    """
    network = ensure_network(session, sha256, name, {})
    wanted = (
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
    ordered = sorted(session.execute(wanted).all(), key=lambda row: tuple(row[2:]))
    for position, (task_id, weight, *_) in enumerate(ordered):
        row = insert(session, NetworkTask).values(
            network_id=network.id, task_id=task_id, weight=int(weight), position=position
        )
        session.execute(row.on_conflict_do_nothing())
    return network


def extraction_of(session: Session, network_id: int, target_id: int) -> Extraction | None:
    """Return the mark that a network was extracted for a target."""
    return session.get(Extraction, (network_id, target_id))
