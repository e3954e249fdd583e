"""Withdrawal of records that turned out to be wrong."""

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from records import bests
from records.errors import NoSuchRow
from records.models import BestRecord, ImportedRound, MeasureRecord, Pick


def withdraw(session: Session, record_id: int) -> MeasureRecord | None:
    """Remove the verification of a record and choose the next best record of its task.

    Returns:
        The new best record of the task, or None.

    Raises:
        NoSuchRow: If the record does not exist.
    """
    record = session.get(MeasureRecord, record_id, with_for_update=True)
    if record is None:
        raise NoSuchRow(f"no measure record {record_id}")
    record.verified = False
    session.flush()
    # Recompute the best latency among the records that share totals with this one.
    same_totals = MeasureRecord.pick_id == record.pick_id
    if record.pick_id is None:
        same_totals = MeasureRecord.pick_id.is_(None) & (MeasureRecord.task_id == record.task_id)
    best = select(func.min(MeasureRecord.latency)).where(same_totals, MeasureRecord.verified)
    secs = session.scalar(best)
    if record.pick_id is None:
        of_task = ImportedRound.task_id == record.task_id
        session.execute(update(ImportedRound).where(of_task).values(best_secs=secs))
    else:
        session.execute(update(Pick).where(Pick.id == record.pick_id).values(best_secs=secs))
    was_best = delete(BestRecord).where(BestRecord.record_id == record_id)
    if session.scalar(was_best.returning(BestRecord.task_id)) is not None:
        _choose_best(session, record.task_id)
    best_id = session.scalar(
        select(BestRecord.record_id).where(BestRecord.task_id == record.task_id)
    )
    return None if best_id is None else session.get_one(MeasureRecord, best_id)


def _choose_best(session: Session, task_id: int) -> None:
    """Choose the best record, preferring winners of finals to records that were in none."""
    if bests.confirmed_records(session, task_id):
        bests.choose_confirmed(session, task_id)
        return
    for fastest in bests.top_records(session, task_id, 1):
        bests.offer(session, [bests.Offer(task_id, fastest.id, fastest.latency or 0.0)])
