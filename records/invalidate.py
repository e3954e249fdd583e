"""Records that turned out to be wrong: no longer verified, and best of nothing."""

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from records import bests
from records.errors import NoSuchRow
from records.models import BestRecord, ImportedRound, MeasureRecord, Pick


def withdraw(session: Session, record_id: int) -> MeasureRecord | None:
    """Take a record's verification back, and let the next best of its task follow it.

    Returns:
        The record that is the best of the task now, if there is one.

    Raises:
        NoSuchRow: If there is no such record.
    """
    record = session.get(MeasureRecord, record_id, with_for_update=True)
    if record is None:
        raise NoSuchRow(f"no measure record {record_id}")
    record.verified = False
    session.flush()
    _mend_sums(session, record)
    was_best = delete(BestRecord).where(BestRecord.record_id == record_id)
    if session.scalar(was_best.returning(BestRecord.task_id)) is not None:
        _choose_best(session, record.task_id)
    kept = select(BestRecord.record_id).where(BestRecord.task_id == record.task_id)
    best_id = session.scalar(kept)
    return None if best_id is None else session.get_one(MeasureRecord, best_id)


def _choose_best(session: Session, task_id: int) -> None:
    """A winner of finals goes before records that were never in one."""
    if bests.champion(session, task_id) is not None:
        bests.choose_confirmed(session, task_id)
        return
    for fastest in bests.top_records(session, task_id, 1):
        bests.offer(session, [bests.Offer(task_id, fastest.id, fastest.latency or 0.0)])


def _mend_sums(session: Session, record: MeasureRecord) -> None:
    """Find the best latency anew among the records that were summed up with this one."""
    same = MeasureRecord.pick_id == record.pick_id
    if record.pick_id is None:
        same = MeasureRecord.pick_id.is_(None) & (MeasureRecord.task_id == record.task_id)
    best = select(func.min(MeasureRecord.latency)).where(same, MeasureRecord.verified)
    secs = session.scalar(best)
    if record.pick_id is None:
        of_task = ImportedRound.task_id == record.task_id
        session.execute(update(ImportedRound).where(of_task).values(best_secs=secs))
    else:
        session.execute(update(Pick).where(Pick.id == record.pick_id).values(best_secs=secs))
