"""Profiles of libraries: for each network on a target, the last one that a worker or owner made."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from records.models import Network, Profile, Target, now
from records.storage.upsert import insert


def find(session: Session, network: str, target: str) -> tuple[int, int] | None:
    """Return the numbers of the network and the target of a library; None if one is unknown.

    Args:
        network: The sha256 of the network.
        target: Fingerprint of the target.
    """
    network_id = session.scalar(select(Network.id).where(Network.sha256 == network))
    target_id = session.scalar(select(Target.id).where(Target.fingerprint == target))
    return None if network_id is None or target_id is None else (network_id, target_id)


def store_profile(
    session: Session, network_id: int, target_id: int, content: dict[str, Any], owner: str = ""
) -> None:
    """Store the profile of a network's library; it replaces the one before.

    Args:
        network_id: The network, perhaps the union of several.
        content: The profile as plain data.
        owner: Owner of the jobs that show an uploaded profile; empty for a profile that was made
            here, which those of all owners show.
    """
    values = {"content": content, "created": now()}
    key = {"network_id": network_id, "target_id": target_id, "owner": owner}
    stmt = insert(session, Profile).values(**key, **values)
    session.execute(stmt.on_conflict_do_update(index_elements=list(key), set_=values))


def profile_of(
    session: Session, network_id: int, target_id: int, owner: str = ""
) -> Profile | None:
    """Return the last profile of a network on a target that an owner may see, or None."""
    stmt = select(Profile).where(
        Profile.network_id == network_id,
        Profile.target_id == target_id,
        Profile.owner.in_(("", owner)),
    )
    return session.scalars(stmt.order_by(Profile.created.desc()).limit(1)).first()
