"""Leases: roles that one process holds at a time, such as that of the coordinator of a service.

A lease expires unless it is renewed; the process that acquires it next gets the next epoch. Every
write of the holder is fenced: before the commit, the transaction checks that its epoch is still
current, so that a holder that was suspended past its lease cannot change anything.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Engine, event, exists, func, literal, select, update
from sqlalchemy.orm import Session, sessionmaker

from records import database
from records.errors import LeaseLost
from records.models import now
from records.service.service_models import Lease
from records.storage.upsert import insert

#: Role of the one process of a service that measures.
COORDINATOR = "coordinator"
#: Beginning of the role of the command that tunes a job; the number of the job follows.
JOB_PREFIX = "job/"
#: Duration of the lease of either, and the interval at which its holder renews it, seconds.
LEASE_SECS = 10.0
RENEWAL_INTERVAL_SECS = 2.5


@dataclass(frozen=True)
class HeldLease:
    """A lease that is valid until another process acquires it with a later epoch."""

    name: str
    holder: str
    epoch: int


def acquire(session: Session, name: str, holder: str, secs: float) -> HeldLease | None:
    """Acquire a lease that is free or has expired; None if another process holds it.

    Args:
        name: The role.
        holder: Name of the process; the present holder may acquire again and gets a new epoch.
        secs: Duration unless renewed, the same for all processes that compete for the role.
    """
    at = _database_now(session)
    free = insert(session, Lease).values(name=name, holder="", epoch=0, expires=at)
    session.execute(free.on_conflict_do_nothing())
    # An expiry further away than the duration was written before the clock was set back.
    until = at + timedelta(seconds=secs)
    session.execute(
        update(Lease).where(Lease.name == name, Lease.expires > until).values(expires=until)
    )
    epoch = session.scalar(
        update(Lease)
        .where(Lease.name == name, (Lease.expires <= at) | (Lease.holder == holder))
        .values(holder=holder, epoch=Lease.epoch + 1, expires=until)
        .returning(Lease.epoch)
    )
    return None if epoch is None else HeldLease(name, holder, epoch)


def renew(session: Session, held: HeldLease, secs: float) -> bool:
    """Extend a lease; False if another process has acquired it."""
    expires = _database_now(session) + timedelta(seconds=secs)
    renewed = session.scalar(
        update(Lease)
        .where(Lease.name == held.name, Lease.epoch == held.epoch)
        .values(expires=expires)
        .returning(Lease.epoch)
    )
    return renewed is not None


def release(session: Session, held: HeldLease) -> None:
    """End a lease now, unless another process has acquired it."""
    session.execute(
        update(Lease)
        .where(Lease.name == held.name, Lease.epoch == held.epoch)
        .values(expires=_database_now(session), holder="")
    )


def is_held(session: Session, name: ColumnElement[str]) -> ColumnElement[bool]:
    """Return an SQL expression: a process holds the lease of this name, which has not expired."""
    return exists().where(Lease.name == name, Lease.expires > _clock(session))


def unreleased(session: Session, name: str) -> Lease | None:
    """Return a lease as it is now, expired or not; None if its last holder has released it."""
    lease = session.get(Lease, name, populate_existing=True)
    return lease if lease is not None and lease.holder else None


def age_secs(session: Session, name: str, secs: float) -> float | None:
    """Return the seconds since a lease was acquired or renewed; None if no process holds it.

    Args:
        name: The role.
        secs: Duration of the lease.
    """
    lease = unreleased(session, name)
    if lease is None:
        return None
    return secs - (lease.expires - _database_now(session)).total_seconds()


def fenced(
    engine: Engine, held: HeldLease, on_locked: database.OnLocked | None = None
) -> sessionmaker[Session]:
    """Return a factory of sessions that commit only while a lease is held, else raise LeaseLost.

    See :func:`records.database.sessions` for ``on_locked``.
    """
    maker = database.sessions(engine, on_locked=on_locked)
    event.listen(maker, "before_commit", lambda session: check(session, held))
    return maker


def check(session: Session, held: HeldLease) -> None:
    """Ensure that a lease is held, and stays so until the transaction ends.

    Raises:
        LeaseLost: If another process has acquired it.
    """
    if not is_current(session, held):
        raise LeaseLost(f"another process is {held.name} now")


def is_current(session: Session, held: HeldLease) -> bool:
    """Return whether a lease is held; if it is, it stays so until the transaction ends."""
    stmt = select(Lease.epoch).where(Lease.name == held.name).with_for_update(read=True)
    return session.scalar(stmt) == held.epoch


def _clock(session: Session) -> ColumnElement[Any]:
    """Return the time of the database as an SQL expression."""
    if session.get_bind().dialect.name == "sqlite":
        return literal(now(), Lease.expires.type)
    return func.clock_timestamp()


def _database_now(session: Session) -> datetime:
    """Return the time of the database server: the clocks of its clients may disagree."""
    if session.get_bind().dialect.name == "sqlite":
        return now()
    at = session.execute(select(func.clock_timestamp())).scalar_one()
    value: datetime = at.astimezone(UTC)
    return value
