"""Packs that devices over HTTPS measure: one process has a pack at a time, and sends its results.

A pack is free if no process has it, or the device of that process is offline. Lines of results are
stored in their order, each once: who has the pack then goes on behind them.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import now
from records.service import remote_devices
from records.service.service_models import OfferedPack, PackPortion, RemoteDevice

#: Leases of a pack by a GPU without results, after which only other GPUs get it.
MAX_ATTEMPTS = 3
#: Leases of a pack by any GPUs without results, after which none gets it.
MAX_ALL_ATTEMPTS = 30


def offer(session: Session, pack: OfferedPack) -> None:
    """Offer a pack, from the start if it was offered before."""
    withdraw(session, pack.pack)
    session.add(pack)


def withdraw(session: Session, pack: str) -> None:
    """Remove a pack and its lines, if it is offered."""
    _drop_lines(session, pack)
    session.execute(delete(OfferedPack).where(OfferedPack.pack == pack))


def list_packs(session: Session) -> Sequence[OfferedPack]:
    """Return all packs, the oldest first."""
    return session.scalars(select(OfferedPack).order_by(OfferedPack.created)).all()


def lease(session: Session, device: RemoteDevice) -> OfferedPack | None:
    """Lease the oldest free pack that is for the GPU of a process; None if there is none.

    A process that has a pack gets it again, and so does the one that replaced it. Results of a pack
    are of one kind of GPU, that of the first; lines of another kind without results are dropped.
    """
    offline = now() - remote_devices.OFFLINE_AFTER
    online = select(RemoteDevice.name).where(RemoteDevice.heartbeat >= offline)
    is_free = or_(OfferedPack.device.is_(None), OfferedPack.device.not_in(online))
    is_own = OfferedPack.device == device.name
    is_open = OfferedPack.ended.is_(None)
    stmt = select(OfferedPack).where(is_open, or_(is_own, is_free))
    for pack in session.scalars(stmt.order_by(is_own.desc(), OfferedPack.created)).all():
        gpu = device.gpu or {}
        is_of_another = pack.gpu is not None and _kind(pack.gpu) != _kind(gpu)
        n_attempts = pack.attempts.get(gpu.get("uuid", ""), 0)
        is_spent = n_attempts >= MAX_ATTEMPTS or is_given_up(pack)
        is_spent &= pack.key != device.key
        is_bound = is_of_another and pack.has_results
        if gpu.get("capability") not in pack.capabilities or is_bound or is_spent:
            if pack.device == device.name:  # by a process before this one
                pack.device = pack.key = None
            continue
        if pack.key == device.key and not is_of_another:
            return pack
        # Another process may lease it in this moment.
        taken = session.execute(
            update(OfferedPack)
            .where(OfferedPack.pack == pack.pack, is_open, or_(is_own, is_free))
            .values(
                device=device.name,
                key=device.key,
                attempts={**pack.attempts, gpu.get("uuid", ""): n_attempts + 1},
            )
            .returning(OfferedPack.pack)
        )
        if taken.first():
            session.refresh(pack)
            if is_of_another:
                _drop_lines(session, pack.pack)
                pack.gpu, pack.n_lines = None, 0
            return pack
    return None


def _drop_lines(session: Session, pack: str) -> None:
    session.execute(delete(PackPortion).where(PackPortion.pack == pack))


def is_given_up(pack: OfferedPack) -> bool:
    """Return whether no GPU gets a pack any more."""
    return bool(sum(pack.attempts.values()) >= MAX_ALL_ATTEMPTS)


def held(session: Session, pack: str, device: RemoteDevice) -> OfferedPack:
    """Return a pack that a process has, locked until the transaction ends.

    Raises:
        NoSuchRow: If it has not.
    """
    stmt = select(OfferedPack).where(
        OfferedPack.pack == pack, OfferedPack.key == device.key, OfferedPack.ended.is_(None)
    )
    row = session.scalars(stmt.with_for_update().execution_options(populate_existing=True)).first()
    if row is None:
        raise NoSuchRow(f"{device.name} has not leased pack {pack}")
    return row


def add_lines(
    session: Session, pack: OfferedPack, lines: Sequence[str], *, have_results: bool
) -> None:
    """Store the lines that follow the last."""
    session.add(PackPortion(pack=pack.pack, first_line=pack.n_lines, lines="".join(lines)))
    pack.n_lines += len(lines)
    if have_results:
        pack.has_results, pack.attempts = True, {}


def lines_of(session: Session, pack: str) -> str:
    """Return the lines of a pack."""
    stmt = select(PackPortion.lines).where(PackPortion.pack == pack)
    return "".join(session.scalars(stmt.order_by(PackPortion.first_line)))


def n_chars(session: Session, pack: str) -> int:
    """Return the size of the lines of a pack."""
    stmt = select(func.coalesce(func.sum(func.length(PackPortion.lines)), 0))
    return int(session.execute(stmt.where(PackPortion.pack == pack)).scalar_one())


def release(pack: OfferedPack, problem: str) -> None:
    """Have a process that cannot measure a pack return it."""
    pack.device, pack.key, pack.problem = None, None, problem


def end(session: Session, pack: OfferedPack) -> None:
    """End a pack whose results are complete; its lines are removed."""
    pack.ended, pack.device, pack.key, pack.problem = now(), None, None, None
    _drop_lines(session, pack.pack)


def _kind(gpu: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in gpu.items() if name != "uuid"}
