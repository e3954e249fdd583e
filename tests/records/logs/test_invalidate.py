"""A record that turned out to be wrong is no longer the best of its task."""

import pytest
from sqlalchemy.orm import Session

from records import bests, measure_records
from records.errors import NoSuchRow
from records.logs import invalidate
from records.models import BestRecord, ImportedRound, MeasureRecord
from records.tuning import rounds
from tests.records import make


def add(session: Session, new: measure_records.NewRecord) -> MeasureRecord:
    """Store a new trial."""
    record = measure_records.add_record(session, new)
    assert record is not None
    return record


def test_the_next_best_follows(session: Session) -> None:
    """The next record, or none, becomes the best, and the totals of its pick follow."""
    task_id = make.task(session)
    pick_id = make.pick(session, make.job(session), task_id, 2, {}).id
    first = add(session, make.timed(task_id, "a", 1.0, pick_id=pick_id))
    second = add(session, make.timed(task_id, "b", 2.0, pick_id=pick_id))

    assert invalidate.withdraw(session, first.id) is second
    assert bests.best_latencies(session, [task_id]) == {task_id: 2.0}
    assert [r.best_secs for r in rounds.history(session, [task_id])[task_id]] == [2.0]

    assert invalidate.withdraw(session, second.id) is None
    assert bests.best_latencies(session, [task_id]) == {}
    assert not first.verified
    assert first.run_secs == [1.0]


def test_a_confirmed_record_follows_before_a_faster_one(session: Session) -> None:
    """Records of a final are compared by their confirmed latency."""
    task_id = make.task(session)
    records = [add(session, make.timed(task_id, f"t{i}", 1.0 + i)) for i in range(4)]
    for record, secs in zip(records[1:], (5.0, 4.0, 3.0), strict=True):
        bests.confirm(session, record.id, [secs])
    bests.choose_confirmed(session, task_id)

    invalidate.withdraw(session, records[3].id)

    best = session.get_one(BestRecord, task_id)
    assert (best.record_id, best.latency, best.confirmed) == (records[2].id, 4.0, True)


def test_a_record_that_is_not_the_best_leaves_the_best_alone(session: Session) -> None:
    """Only its verification ends; imported records have separate totals."""
    task_id = make.task(session)
    best, other = (add(session, make.timed(task_id, f"t{i}", 1.0 + i)) for i in range(2))

    assert invalidate.withdraw(session, other.id) is best
    assert session.get_one(ImportedRound, task_id).best_secs == 1.0
    invalidate.withdraw(session, best.id)
    session.expire_all()
    assert session.get_one(ImportedRound, task_id).best_secs is None
    with pytest.raises(NoSuchRow, match="no measure record 99"):
        invalidate.withdraw(session, 99)
