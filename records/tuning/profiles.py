"""Profiles of libraries: for each network on a target, the last one."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from records.models import Network, Profile, Target, now
from records.storage.upsert import insert


def store_profile(
    session: Session, network: str, target: str, content: dict[str, Any]
) -> Profile | None:
    """Store the profile of a network's library; it replaces the one before.

    Args:
        session: The transaction.
        network: The sha256 of the network.
        target: Fingerprint of the target.
        content: The profile as plain data.

    Returns:
        The row; None if the database does not know the network or the target.
    """
    network_id = session.scalar(select(Network.id).where(Network.sha256 == network))
    target_id = session.scalar(select(Target.id).where(Target.fingerprint == target))
    if network_id is None or target_id is None:
        return None
    values = {"content": content, "created": now()}
    key = {"network_id": network_id, "target_id": target_id}
    stmt = insert(session, Profile).values(**key, **values)
    session.execute(stmt.on_conflict_do_update(index_elements=list(key), set_=values))
    return profile_of(session, network_id, target_id)


def profile_of(session: Session, network_id: int, target_id: int) -> Profile | None:
    """Return the last profile of a network on a target, or None."""
    return session.get(Profile, (network_id, target_id), populate_existing=True)
