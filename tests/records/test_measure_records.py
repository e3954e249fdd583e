"""Every spent trial is stored as one record."""

import math
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from records import measure_records
from records.models import ERROR_KINDS, MeasureFeature, MeasureRecord
from tests.records import make


def test_a_trace_counts_once_per_task(session: Session) -> None:
    """A second record of a trace is None; the same trace of another task is new."""
    first, second = make.task(session, "a"), make.task(session, "b")

    assert measure_records.add_record(session, make.timed(first, "t", 1.0)) is not None
    assert measure_records.add_record(session, make.timed(first, "t", 0.5)) is None
    assert measure_records.add_record(session, make.timed(second, "t", 1.0)) is not None
    assert make.count_by_task(session, [first, second]) == {
        first: (1, 0),
        second: (1, 0),
    }


def test_latency_is_the_median_and_every_sample_is_kept(session: Session) -> None:
    """An outlier does not change the latency, and features are stored."""
    new = make.timed(make.task(session), "t", 3.0, 1.0, 2.0, features=b"\x00\x01")

    record = measure_records.add_record(session, new)

    assert record is not None
    assert (record.latency, record.run_secs, record.error_kind) == (2.0, [3.0, 1.0, 2.0], None)
    assert session.get_one(MeasureFeature, record.id).features == b"\x00\x01"


def test_a_clock_factor_changes_the_latency_and_no_sample(session: Session) -> None:
    """Samples stay as they were taken; the latency is free of the drift."""
    new = make.timed(make.task(session), "t", 3.0, 1.0, 2.0, clock_factor=0.5)

    record = measure_records.add_record(session, new)

    assert record is not None
    assert (record.latency, record.run_secs, record.clock_factor) == (1.0, [3.0, 1.0, 2.0], 0.5)


def test_a_clock_factor_must_be_positive(session: Session) -> None:
    """A device that was measured to have stopped is an error of the caller."""
    new = make.timed(make.task(session), "t", 1.0, clock_factor=0.0)

    with pytest.raises(ValueError, match=r"finite and positive, got 0\.0"):
        measure_records.add_record(session, new)


@pytest.mark.parametrize(
    ("changes", "constraint"),
    [
        ({"run_secs": None, "latency": None}, "timed_or_failed"),  # neither
        ({"error_kind": "run_error"}, "timed_or_failed"),  # both
        ({"latency": None}, "latency_of_samples"),
        ({"run_secs": None, "latency": None, "error_kind": "tired"}, "error_kind_known"),
        (
            {"run_secs": None, "latency": None, "error_kind": "wrong_result", "verified": True},
            "verified_has_samples",
        ),
    ],
)
def test_the_database_refuses_contradictions(
    session: Session, changes: dict[str, Any], constraint: str
) -> None:
    """A record has either samples or an error, regardless of its writer."""
    columns = {
        "task_id": make.task(session),
        "trace": "[]",
        "trace_hash": "t",
        "run_secs": [1.0],
        "latency": 1.0,
        "verified": False,
        "worker": "w",
    }
    session.add(MeasureRecord(**columns | changes))

    with pytest.raises(IntegrityError, match=constraint):
        session.flush()


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_every_error_kind_is_stored(session: Session, kind: str) -> None:
    """A failed trial has its error kind and no samples."""
    record = measure_records.add_record(session, make.failed(make.task(session), "t", kind))

    assert record is not None
    assert (record.error_kind, record.run_secs, record.latency) == (kind, None, None)


@pytest.mark.parametrize("samples", [[], [math.nan], [math.inf], [-1.0]])
def test_samples_must_be_durations(session: Session, samples: list[float]) -> None:
    """Negative, infinite and missing times are refused."""
    with pytest.raises(ValueError, match="finite seconds"):
        measure_records.add_record(session, make.timed(make.task(session), "t", *samples))


def test_output_of_compilers_is_storable(session: Session) -> None:
    """NUL and invalid characters are replaced, and a NaN difference becomes infinite."""
    new = make.failed(
        make.task(session), "t", "wrong_result", error_text="a\x00b\udc80", max_error=math.nan
    )

    record = measure_records.add_record(session, new)

    assert record is not None
    assert (record.error_text, record.max_error) == ("a\ufffdb?", math.inf)


def test_conditions_are_kept(session: Session) -> None:
    """Conditions are stored, with values that JSON lacks as null."""
    conditions = {"sm_mhz": 1980, "celsius": math.nan, "throttled": ["power"]}
    new = make.timed(make.task(session), "t", 1.0, conditions=conditions)

    record = measure_records.add_record(session, new)

    assert record is not None
    assert record.conditions == {"sm_mhz": 1980, "celsius": None, "throttled": ["power"]}


def test_past_trials_are_those_before_the_pick(session: Session) -> None:
    """Records of earlier picks and of no pick are included, those of the pick are not."""
    task_id, job_id = make.task(session), make.job(session)
    first, second = (make.pick(session, job_id, task_id, 2).id for _ in range(2))
    for new in (
        make.timed(task_id, "a", 1.0, pick_id=first, module_hash="m"),
        make.timed(task_id, "b", 1.0, pick_id=second),
        make.failed(task_id, "c"),
    ):
        measure_records.add_record(session, new)

    seen = measure_records.past_trials(session, task_id, second)

    assert seen == [('["a"]', "a", "m", 1.0, None), ('["c"]', "c", None, None, "run_error")]
    assert [row.trace_hash for row in measure_records.past_trials(session, task_id, None)] == [
        "a",
        "b",
        "c",
    ]
    assert measure_records.traces_of_pick(session, second) == {"b"}


def test_own_trials_are_those_a_job_paid_for(session: Session) -> None:
    """Jobs that share a task share its best record, but each trial counts for one job."""
    task_id, mine, other = make.task(session), make.job(session, 1), make.job(session, 2)
    for job_id, hashes in ((mine, "ab"), (other, "c")):
        pick = make.pick(session, job_id, task_id, 2)
        for trace_hash in hashes:
            measure_records.add_record(
                session, make.timed(task_id, trace_hash, 1.0, pick_id=pick.id)
            )

    assert measure_records.own_trials(session, mine) == {task_id: 2}
    assert measure_records.own_trials(session, other) == {task_id: 1}


def test_foreign_records_are_those_that_others_paid_for(session: Session) -> None:
    """Records of other jobs and of no pick are returned after a given id."""
    task_id, mine, other = make.task(session), make.job(session, 1), make.job(session, 2)
    ids = {job_id: make.pick(session, job_id, task_id, 2).id for job_id in (mine, other)}
    assert measure_records.newest_id(session) == 0
    measure_records.add_record(session, make.timed(task_id, "old", 1.0))
    known = measure_records.newest_id(session)
    for new in (
        make.timed(task_id, "mine", 1.0, pick_id=ids[mine]),
        make.timed(task_id, "theirs", 2.0, pick_id=ids[other]),
        make.failed(task_id, "free"),
    ):
        measure_records.add_record(session, new)

    foreign = measure_records.foreign_since(session, known, [mine])

    newest = measure_records.newest_id(session)
    assert foreign == [
        (newest - 1, task_id, "theirs", 2.0, True, None),
        (newest, task_id, "free", None, False, "run_error"),
    ]
    assert measure_records.foreign_since(session, known, [mine], limit=1) == foreign[:1]
    assert measure_records.foreign_since(session, newest, []) == []
    assert measure_records.foreign_since(session, known, [mine, other]) == foreign[1:]
