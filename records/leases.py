"""Leases: a role that one process at a time has, such as that of the coordinator.

A lease that is not renewed ends by itself; whoever takes it over gets the next epoch. Every
write of its holder is fenced: the transaction checks, before it commits, that the epoch is
still its own, so that a holder that slept through its lease changes nothing any more.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, event, func, select, update
from sqlalchemy.orm import Session, sessionmaker

from records import database
from records.errors import LeaseLost
from records.models import now
from records.service_models import Lease
from records.upsert import insert


@dataclass(frozen=True)
class Held:
    """A lease that its holder has until somebody else has a later epoch."""

    name: str
    holder: str
    epoch: int


def acquire(session: Session, name: str, holder: str, secs: float) -> Held | None:
    """Take a lease that is free or has ended; None if somebody else has it.

    Args:
        session: The transaction.
        name: The role.
        holder: Who asks; the same holder may ask again and gets a new epoch.
        secs: How long it lasts unless it is renewed; all who ask for it agree on that.
    """
    at = _database_now(session)
    free = insert(session, Lease).values(name=name, holder="", epoch=0, expires=at)
    session.execute(free.on_conflict_do_nothing())
    # An end that nobody can have asked for is of before the clock was set back.
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
    return None if epoch is None else Held(name, holder, epoch)


def renew(session: Session, held: Held, secs: float) -> bool:
    """Put off the end of a lease; False if it is somebody else's now."""
    expires = _database_now(session) + timedelta(seconds=secs)
    renewed = session.scalar(
        update(Lease)
        .where(Lease.name == held.name, Lease.epoch == held.epoch)
        .values(expires=expires)
        .returning(Lease.epoch)
    )
    return renewed is not None


def release(session: Session, held: Held) -> None:
    """End a lease now, if it is still one's own."""
    session.execute(
        update(Lease)
        .where(Lease.name == held.name, Lease.epoch == held.epoch)
        .values(expires=_database_now(session), holder="")
    )


def fenced(
    engine: Engine, held: Held, on_locked: database.OnLocked | None = None
) -> sessionmaker[Session]:
    """Return sessions that commit only while a lease is one's own; they raise LeaseLost.

    See :func:`records.database.sessions` for ``on_locked``.
    """
    maker = database.sessions(engine, on_locked=on_locked)
    event.listen(maker, "before_commit", lambda session: check(session, held))
    return maker


def check(session: Session, held: Held) -> None:
    """Make sure that a lease is one's own, and stays so until the transaction ends.

    Raises:
        LeaseLost: If it is somebody else's.
    """
    wanted = select(Lease.epoch).where(Lease.name == held.name).with_for_update(read=True)
    if session.scalar(wanted) != held.epoch:
        raise LeaseLost(f"another process is {held.name} now")


def _database_now(session: Session) -> datetime:
    """Return the time of the database: machines that share one need not agree on theirs."""
    if session.get_bind().dialect.name == "sqlite":
        return now()
    at = session.execute(select(func.clock_timestamp())).scalar_one()
    value: datetime = at.astimezone(UTC)
    return value
