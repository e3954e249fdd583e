"""Stored totals equal the counts of the records."""

import io
import math

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from records import measure_records
from records.logs import measure_log
from records.models import ImportedRound, JobFailure, MeasureRecord, Pick
from records.tuning.aggregates import TIMEOUTS
from tests.records import make


def _spend(session: Session) -> tuple[int, int]:
    """Spend two rounds on one task and none on another, with some duplicate trials."""
    job_id, task_id = make.job(session), make.task(session)
    first = make.pick(session, job_id, task_id, 4).id
    second = make.pick(session, job_id, task_id, 4).id
    for new in (
        make.timed(task_id, "a", 3.0, pick_id=first),
        make.timed(task_id, "b", 1.0, pick_id=first, verified=False),
        make.failed(task_id, "c", "run_timeout", pick_id=first),
        make.failed(task_id, "c", "run_timeout", pick_id=first),
        make.failed(task_id, "d", "wrong_result", pick_id=second),
        make.failed(task_id, "e", "run_timeout", pick_id=second),
        make.timed(task_id, "f", 2.0),
        make.failed(task_id, "g", "build_error"),
    ):
        measure_records.add_record(session, new)
    return job_id, task_id


def test_totals_equal_the_counts_of_records(session: Session) -> None:
    """Totals per pick and of records without a pick count each trace once."""
    _spend(session)
    kind, latency = MeasureRecord.error_kind, MeasureRecord.latency
    counted = session.execute(
        select(
            MeasureRecord.pick_id,
            func.count(),
            func.count(kind),
            func.count(case((kind.in_(TIMEOUTS), 1))),
            func.min(case((MeasureRecord.verified, latency))),
            func.coalesce(func.sum(latency), 0.0),
        ).group_by(MeasureRecord.pick_id)
    ).all()
    kept: list[tuple[object, ...]] = [
        tuple(row)
        for row in session.execute(
            select(
                Pick.id,
                Pick.n_measured,
                Pick.n_failed,
                Pick.n_timeouts,
                Pick.best_secs,
                Pick.run_secs,
            )
        )
    ]
    free = session.scalars(select(ImportedRound)).one()
    kept.append(
        (None, free.n_measured, free.n_failed, free.n_timeouts, free.best_secs, free.run_secs)
    )

    assert sorted(kept, key=str) == sorted((tuple(row) for row in counted), key=str)


def test_failures_are_counted_by_kind(session: Session) -> None:
    """Each error kind has its count and its last trial; imported failures belong to no job."""
    job_id, _ = _spend(session)
    last = session.scalar(select(MeasureRecord.id).where(MeasureRecord.trace_hash == "e"))

    rows = session.scalars(select(JobFailure).where(JobFailure.job_id == job_id)).all()

    counts = {row.error_kind: row.n_trials for row in rows}
    assert counts == {"run_timeout": 2, "wrong_result": 1}
    assert {row.record_id for row in rows if row.error_kind == "run_timeout"} == {last}


def test_an_import_counts_only_new_records(session: Session) -> None:
    """Records that the database already has are not counted again."""
    _, task_id = _spend(session)
    text = io.StringIO()
    measure_log.export(session, text)

    measure_log.import_(session, io.StringIO(text.getvalue()), trusted=True)

    assert make.count_by_task(session, [task_id]) == {task_id: (7, 4)}


def test_a_best_of_zero_is_a_best(session: Session) -> None:
    """A latency of 0 from a coarse clock is less than any other."""
    job_id, task_id = make.job(session), make.task(session)
    pick = make.pick(session, job_id, task_id, 2)
    measure_records.add_record(session, make.timed(task_id, "a", 0.0, pick_id=pick.id))
    measure_records.add_record(session, make.timed(task_id, "b", 1.0, pick_id=pick.id))

    session.refresh(pick)

    assert pick.best_secs == 0.0
    assert math.isclose(pick.run_secs, 1.0)
