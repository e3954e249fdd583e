"""Code of records: what clients asked for, and the texts that a worker printed.

A part of a record's code is printed once for all who ask, and forgotten after a day.
"""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from records.models import now
from records.service.service_models import KernelCode
from records.storage.text import storable
from records.storage.upsert import find_or_insert
from records.tuning.attempts import MAX_DEATHS

#: Parts that wait at a time, of all clients.
MAX_WAITING = 64
_MAX_CHARS = 2_000_000
_IS_WAITING = KernelCode.text.is_(None) & KernelCode.message.is_(None)


def ask(session: Session, record_id: int, parts: Sequence[str]) -> bool:
    """Ask for parts of a record's code; False if too many wait. A failed part is tried again."""
    n_waiting = session.scalar(select(func.count()).select_from(KernelCode).where(_IS_WAITING))
    if (n_waiting or 0) + len(parts) > MAX_WAITING:
        return False
    for part in parts:
        key = {"record_id": record_id, "part": part}
        row = find_or_insert(session, KernelCode, key, {"attempts": 0, "asked": now()})
        if row.message is not None:
            row.message, row.attempts, row.asked = None, 0, now()
    session.flush()
    return True


def parts_of(session: Session, record_id: int) -> list[KernelCode]:
    """Return the parts of a record's code that were asked for."""
    stmt = select(KernelCode).where(KernelCode.record_id == record_id).order_by(KernelCode.part)
    return list(session.scalars(stmt))


def is_any_waiting(session: Session) -> bool:
    """Return whether a part waits."""
    return session.scalar(select(KernelCode.record_id).where(_IS_WAITING).limit(1)) is not None


def begin_next(session: Session) -> KernelCode | None:
    """Count an attempt for the part that has waited longest, and return it; None if none waits.

    A part over which several processes died fails.
    """
    stmt = select(KernelCode).where(_IS_WAITING).order_by(KernelCode.attempts, KernelCode.asked)
    for row in session.scalars(stmt):
        if row.attempts < MAX_DEATHS:
            row.attempts += 1
            session.flush()
            return row
        row.message = "the process of the worker died over it several times"
    return None


def finish(
    session: Session, row: KernelCode, *, text: str = "", message: str | None = None
) -> None:
    """Store the text of a part, or the reason that it has none."""
    stored = session.get_one(KernelCode, (row.record_id, row.part))
    if message is None:
        stored.text = storable(text)[:_MAX_CHARS]
    else:
        stored.message = storable(message)
    session.flush()


def forget(session: Session, age: timedelta) -> None:
    """Remove what was asked for before this age."""
    session.execute(delete(KernelCode).where(KernelCode.asked < now() - age))
