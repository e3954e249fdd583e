"""Devices and builders that serve over HTTPS, and the calls that the coordinator has for them.

A device is a process under a name. Each process draws a key, so that one that was started again
replaces its predecessor, whose leases end. A call is leased to a key, and answered at most once.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from records.errors import NameInUse, NoSuchRow
from records.models import now
from records.service.service_models import RemoteCall, RemoteDevice
from records.storage.upsert import insert

#: A device without a request for this long has lost its name, and its calls.
OFFLINE_AFTER = timedelta(seconds=30)


def register(
    session: Session,
    name: str,
    owner: str,
    key: str,
    n_builders: int = 0,
    gpu: Mapping[str, Any] | None = None,
) -> None:
    """Give a name to a process, whichever process of the same owner had it before.

    Args:
        name: Name of the device.
        owner: Name of its token.
        n_builders: Builds that it does at a time.
        gpu: GPU of a process that measures packs.

    Raises:
        NameInUse: If a device of another owner has the name and is alive.
    """
    device = session.get(RemoteDevice, name)
    if device is not None and device.owner != owner and is_alive(device):
        raise NameInUse(f"a device of another token is named {name}")
    columns = {
        "owner": owner,
        "key": key,
        "heartbeat": now(),
        "n_builders": n_builders,
        "gpu": None if gpu is None else dict(gpu),
    }
    stmt = insert(session, RemoteDevice).values(name=name, **columns)
    session.execute(stmt.on_conflict_do_update(index_elements=[RemoteDevice.name], set_=columns))


def leave(session: Session, name: str, key: str) -> None:
    """Remove a device that ends."""
    session.execute(delete(RemoteDevice).where(RemoteDevice.name == name, RemoteDevice.key == key))


def lease(
    session: Session, name: str, key: str, limit: int, known: Sequence[str] = ()
) -> Sequence[RemoteCall]:
    """Lease calls to a process, the oldest first; those that it has not answered come again.

    Args:
        name: Name of the device.
        limit: Largest number of calls.
        known: Calls that the process has, which need not come again.

    Raises:
        NoSuchRow: If the device is not registered.
        NameInUse: If another process has the name now.
    """
    touch(session, name, key)
    calls = session.scalars(
        select(RemoteCall)
        .where(RemoteCall.device == name, RemoteCall.answer.is_(None))
        .where(RemoteCall.id.not_in(known))
        .where(or_(RemoteCall.key.is_(None), RemoteCall.key == key))
        .order_by(RemoteCall.id)
        .limit(limit)
    ).all()
    for call in calls:
        call.key = key
    return calls


def store_answers(session: Session, name: str, key: str, answers: Mapping[str, bytes]) -> None:
    """Store answers to calls that a process has leased; ignore those to any other call.

    Raises:
        NoSuchRow: If the device is not registered.
        NameInUse: If another process has the name now.
    """
    touch(session, name, key)
    for call_id, answer in answers.items():
        session.execute(
            update(RemoteCall)
            .where(RemoteCall.id == call_id, RemoteCall.device == name, RemoteCall.key == key)
            .where(RemoteCall.answer.is_(None))
            .values(answer=answer)
        )


def waiting(session: Session) -> frozenset[str]:
    """Return the names of the devices for which calls wait."""
    return frozenset(session.scalars(select(RemoteCall.device).where(RemoteCall.key.is_(None))))


def active(session: Session) -> frozenset[str]:
    """Return the names of the devices that have leased calls and not answered them."""
    leased = select(RemoteCall.device).where(RemoteCall.key.is_not(None))
    return frozenset(session.scalars(leased.where(RemoteCall.answer.is_(None))))


def devices(session: Session) -> Sequence[RemoteDevice]:
    """Return all devices by name, including those that are offline."""
    return session.scalars(select(RemoteDevice).order_by(RemoteDevice.name)).all()


def leased(session: Session) -> Sequence[RemoteCall]:
    """Return the calls that some process has leased, or answered."""
    return session.scalars(select(RemoteCall).where(RemoteCall.key.is_not(None))).all()


def remove_calls(session: Session, ids: Iterable[str]) -> None:
    """Remove calls that have ended."""
    session.execute(delete(RemoteCall).where(RemoteCall.id.in_(list(ids))))


def remove_all_calls(session: Session) -> None:
    """Remove the calls of an earlier coordinator."""
    session.execute(delete(RemoteCall))


def is_alive(device: RemoteDevice) -> bool:
    """Return whether a device has sent a request lately."""
    return abs(now() - device.heartbeat) < OFFLINE_AFTER


def forget(session: Session, age: timedelta) -> None:
    """Remove the devices whose last request is older than ``age``."""
    session.execute(delete(RemoteDevice).where(RemoteDevice.heartbeat < now() - age))


def touch(session: Session, name: str, key: str) -> RemoteDevice:
    """Note that a process lives; return its device.

    Raises:
        NoSuchRow: If the device is not registered.
        NameInUse: If another process has the name now.
    """
    device = session.get(RemoteDevice, name)
    if device is None:
        raise NoSuchRow(f"device {name} is not registered")
    if device.key != key:
        raise NameInUse(f"another process measures as {name} now")
    device.heartbeat = now()
    return device
