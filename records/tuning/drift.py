"""Marks on records of a device that has drifted; those that are too fast lose verification."""

from collections.abc import Collection

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from records.logs import invalidate
from records.models import MeasureRecord, Pick


def mark(
    session: Session, job_ids: Collection[int], device: str, after_id: int, ratio: float
) -> int:
    """Mark records of a device whose latencies are not comparable with those of other devices.

    Latencies that are too long stay: a candidate that wins nevertheless is at least as good.
    Records with latencies that are too short lose their verification, because they would win.

    Args:
        job_ids: Jobs that paid for the records; they identify the device, because another
            coordinator may have a device of the same name.
        device: Name of the device that timed the records.
        after_id: Lower bound of the record ids, exclusive.
        ratio: Measured over expected time of the device, stored as ``device_drift``.

    Returns:
        Number of records marked.
    """
    stmt = (
        select(MeasureRecord.id, MeasureRecord.conditions, MeasureRecord.verified)
        .join(Pick, Pick.id == MeasureRecord.pick_id)
        .where(
            MeasureRecord.id > after_id,
            MeasureRecord.worker == device,
            MeasureRecord.run_secs.is_not(None),
            Pick.job_id.in_(job_ids),
        )
        .order_by(MeasureRecord.id)
    )
    rows = session.execute(stmt).all()
    marked = [
        {"id": row.id, "conditions": {**(row.conditions or {}), "device_drift": ratio}}
        for row in rows
    ]
    if marked:
        session.execute(update(MeasureRecord), marked)
    if ratio < 1.0:
        for row in rows:
            if row.verified:
                invalidate.withdraw(session, row.id)
    return len(marked)
