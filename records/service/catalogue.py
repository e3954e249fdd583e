"""Pages of networks and targets, the newest first."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import Network, NetworkTask, Target, Task
from records.service.owners.access import EVERYTHING, Viewer, visible_networks


def list_networks(
    session: Session, before: int | None, limit: int, viewer: Viewer = EVERYTHING
) -> list[Network]:
    """Return at most ``limit`` networks that a viewer may see, with ids below ``before``."""
    stmt = select(Network).where(visible_networks(viewer)).order_by(Network.id.desc()).limit(limit)
    if before is not None:
        stmt = stmt.where(Network.id < before)
    return list(session.scalars(stmt))


def list_targets(session: Session, before: int | None, limit: int) -> list[Target]:
    """Return at most ``limit`` targets with ids below ``before``."""
    stmt = select(Target).order_by(Target.id.desc()).limit(limit)
    if before is not None:
        stmt = stmt.where(Target.id < before)
    return list(session.scalars(stmt))


def targets_of(session: Session, network_id: int, viewer: Viewer = EVERYTHING) -> list[int]:
    """Return the targets that a network was extracted for.

    Raises:
        NoSuchRow: If the network does not exist, or the viewer may not see it.
    """
    visible = select(Network.id).where(Network.id == network_id, visible_networks(viewer))
    if session.scalar(visible) is None:
        raise NoSuchRow(f"no network {network_id}")
    return targets_by_network(session, [network_id]).get(network_id, [])


def targets_by_network(session: Session, network_ids: Sequence[int]) -> dict[int, list[int]]:
    """Return the targets that networks were extracted for, by network."""
    stmt = (
        select(NetworkTask.network_id, Task.target_id)
        .join(Task, Task.id == NetworkTask.task_id)
        .where(NetworkTask.network_id.in_(network_ids))
        .distinct()
        .order_by(NetworkTask.network_id, Task.target_id)
    )
    targets: dict[int, list[int]] = {}
    for network_id, target_id in session.execute(stmt):
        targets.setdefault(network_id, []).append(target_id)
    return targets
