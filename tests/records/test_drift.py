"""What becomes of the records of a device that drifted."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from records import bests, drift, measures
from records.models import MeasureRecord
from tests.records import make


def _conditions(session: Session) -> dict[str, object]:
    found = session.scalars(select(MeasureRecord).execution_options(populate_existing=True))
    return {record.trace_hash: record.conditions for record in found}


def test_only_later_records_of_that_device_and_target_are_marked(session: Session) -> None:
    """What else is known of them stays; a trial that failed has no latency to mark."""
    task_id, other = make.task(session), make.task(session, core_count=64)
    measures.add_record(session, make.timed(task_id, "before", 1.0))
    after_id = measures.newest_id(session)
    measures.add_records(
        session,
        [
            make.timed(task_id, "drifted", 3.0, conditions={"clock_mhz": 900}),
            make.timed(task_id, "of another device", 1.0, worker="w2"),
            make.timed(other, "of another target", 1.0),
            make.failed(task_id, "failed"),
        ],
    )

    n_marked = drift.mark(session, make.target(session), "w1", after_id, 3.0)

    conditions = _conditions(session)
    assert n_marked == 1
    assert conditions.pop("drifted") == {"clock_mhz": 900, "device_drift": 3.0}
    assert set(conditions.values()) == {None}


@pytest.mark.parametrize(("ratio", "best"), [(3.0, "drifted"), (0.5, "before")])
def test_records_that_are_too_good_win_nothing(session: Session, ratio: float, best: str) -> None:
    """A device that was too slow and won nevertheless deserves it."""
    task_id = make.task(session)
    measures.add_record(session, make.timed(task_id, "before", 1.0))
    after_id = measures.newest_id(session)
    measures.add_record(session, make.timed(task_id, "drifted", 0.9))

    drift.mark(session, make.target(session), "w1", after_id, ratio)

    assert bests.best_records(session, [task_id])[task_id].trace_hash == best
