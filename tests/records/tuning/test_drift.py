"""Records of a device that drifted are marked, and lose verification if too fast."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from records import bests, measure_records
from records.models import MeasureRecord
from records.tuning import drift
from tests.records import make


def _job(session: Session, task_id: int, seed: int = 0) -> tuple[int, int]:
    """Return the ids of a job and of one of its picks."""
    job_id = make.job(session, seed=seed)
    return job_id, make.pick(session, job_id, task_id, 4).id


def test_only_later_records_of_that_device_and_job_are_marked(session: Session) -> None:
    """Other conditions stay, and failed trials are not marked."""
    task_id = make.task(session)
    (job_id, pick), (_, other) = _job(session, task_id), _job(session, task_id, seed=1)
    measure_records.add_record(session, make.timed(task_id, "before", 1.0, pick_id=pick))
    after_id = measure_records.newest_id(session)
    measure_records.add_records(
        session,
        [
            make.timed(task_id, "drifted", 3.0, conditions={"clock_mhz": 900}, pick_id=pick),
            make.timed(task_id, "of another device", 1.0, worker="w2", pick_id=pick),
            make.timed(task_id, "of another job", 1.0, pick_id=other),
            make.timed(task_id, "imported", 1.0),
            make.failed(task_id, "failed", pick_id=pick),
        ],
    )

    n_marked = drift.mark(session, [job_id], "w1", after_id, 3.0)

    records = session.scalars(select(MeasureRecord).execution_options(populate_existing=True))
    conditions = {record.trace_hash: record.conditions for record in records}
    assert n_marked == 1
    assert conditions.pop("drifted") == {"clock_mhz": 900, "device_drift": 3.0}
    assert set(conditions.values()) == {None}


@pytest.mark.parametrize(("ratio", "best"), [(3.0, "drifted"), (0.5, "before")])
def test_records_that_are_too_fast_lose_verification(
    session: Session, ratio: float, best: str
) -> None:
    """Records of a device that was too slow stay verified."""
    task_id = make.task(session)
    job_id, pick = _job(session, task_id)
    measure_records.add_record(session, make.timed(task_id, "before", 1.0, pick_id=pick))
    after_id = measure_records.newest_id(session)
    measure_records.add_record(session, make.timed(task_id, "drifted", 0.9, pick_id=pick))

    drift.mark(session, [job_id], "w1", after_id, ratio)

    assert bests.best_records(session, [task_id])[task_id].trace_hash == best
