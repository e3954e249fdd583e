"""Records of a device that turned out to have drifted: marked, and not believed if too good."""

from collections.abc import Collection

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from records import invalidate
from records.models import MeasureRecord, Pick


def mark(
    session: Session, job_ids: Collection[int], device: str, after_id: int, ratio: float
) -> int:
    """Note with records of a device that its latencies do not compare with those of others.

    Another coordinator may have a device of the same name: the jobs say whose is meant.

    Latencies that are too long stay: a candidate that won nevertheless is at least as good.
    Those that are too short lose their verification, for they would win by it.

    Args:
        session: The transaction.
        job_ids: Only records that these jobs paid for.
        device: Which device timed them.
        after_id: Only records that are newer than this one.
        ratio: What the device takes by what it should, stored as ``device_drift``.

    Returns:
        How many records that is.
    """
    wanted = (
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
    found = session.execute(wanted).all()
    marked = [
        {"id": row.id, "conditions": {**(row.conditions or {}), "device_drift": ratio}}
        for row in found
    ]
    if marked:
        session.execute(update(MeasureRecord), marked)
    if ratio < 1.0:
        for row in found:
            if row.verified:
                invalidate.withdraw(session, row.id)
    return len(marked)
