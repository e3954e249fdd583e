"""Calibrations: one kernel timed on every device, to find devices that disagree or drift.

Only latencies of the same kernel are comparable. The kernel of a target is the one that was
timed last; after it changes, earlier calibrations no longer count.
"""

from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from records.models import now
from records.service.service_models import Calibration


class NewCalibration(NamedTuple):
    """Shortest sample of a kernel, identified by its hash, on a device, seconds."""

    device: str
    host: str
    target_id: int
    kernel: str
    secs: float


def add(session: Session, new: NewCalibration) -> Calibration:
    """Store a calibration."""
    row = Calibration(**new._asdict())
    session.add(row)
    session.flush()
    return row


def latest(session: Session, target_id: int) -> dict[str, float]:
    """Return the last calibration of each device of a target, seconds, by device name."""
    of_target = select(Calibration.kernel).where(Calibration.target_id == target_id)
    newest = (
        select(func.max(Calibration.id))
        .where(
            Calibration.target_id == target_id,
            Calibration.kernel
            == of_target.order_by(Calibration.id.desc()).limit(1).scalar_subquery(),
        )
        .group_by(Calibration.device)
    )
    stmt = select(Calibration.device, Calibration.secs).where(Calibration.id.in_(newest))
    rows = session.execute(stmt.order_by(Calibration.device))
    return {device: secs for device, secs in rows}  # noqa: C416  rows are not pairs to mypy


def forget(session: Session, age: timedelta) -> None:
    """Remove calibrations older than ``age``."""
    session.execute(delete(Calibration).where(Calibration.created < now() - age))
