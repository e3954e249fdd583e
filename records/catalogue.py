"""What the database knows, in pages: networks and targets, the newest first."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import Network, NetworkTask, Target, Task


def list_networks(session: Session, before: int | None, limit: int) -> list[Network]:
    """Return networks with lower ids than one, at most ``limit``."""
    wanted = select(Network).order_by(Network.id.desc()).limit(limit)
    if before is not None:
        wanted = wanted.where(Network.id < before)
    return list(session.scalars(wanted))


def list_targets(session: Session, before: int | None, limit: int) -> list[Target]:
    """Return targets with lower ids than one, at most ``limit``."""
    wanted = select(Target).order_by(Target.id.desc()).limit(limit)
    if before is not None:
        wanted = wanted.where(Target.id < before)
    return list(session.scalars(wanted))


def targets_of(session: Session, network_id: int) -> list[int]:
    """Return the targets that a network was split into tasks for.

    Raises:
        NoSuchRow: If there is no such network.
    """
    if session.get(Network, network_id) is None:
        raise NoSuchRow(f"no network {network_id}")
    return targets_by_network(session, [network_id]).get(network_id, [])


def targets_by_network(session: Session, network_ids: Sequence[int]) -> dict[int, list[int]]:
    """Return the targets that networks were split into tasks for, by network."""
    wanted = (
        select(NetworkTask.network_id, Task.target_id)
        .join(Task, Task.id == NetworkTask.task_id)
        .where(NetworkTask.network_id.in_(network_ids))
        .distinct()
        .order_by(NetworkTask.network_id, Task.target_id)
    )
    found: dict[int, list[int]] = {}
    for network_id, target_id in session.execute(wanted):
        found.setdefault(network_id, []).append(target_id)
    return found
