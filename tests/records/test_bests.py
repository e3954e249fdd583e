"""The best record of a task is its fastest verified one, and is read without a scan."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from records import bests, database, measure_records
from records.errors import NoSuchRow, NoValidRecord
from records.models import BestRecord, MeasureRecord
from tests.records import make


def add(session: Session, new: measure_records.NewRecord) -> MeasureRecord:
    """Store a new trial."""
    record = measure_records.add_record(session, new)
    assert record is not None
    return record


def add_best(session: Session, new: measure_records.NewRecord) -> bool:
    """Store a new trial; returns whether it became the best of its task."""
    (stored,) = measure_records.add_records(session, [new])
    return stored is not None and stored.best


def best(session: Session, core_count: int = 2) -> MeasureRecord:
    """Return the best record of the usual workload on a target."""
    task_id = make.task(session, core_count=core_count)
    return session.get_one(MeasureRecord, bests.best_records(session, [task_id])[task_id].record_id)


def test_the_fastest_verified_record_is_the_best(session: Session) -> None:
    """Unverified and failed trials never become the best, and ties go to the oldest."""
    task_id = make.task(session)
    for new in (
        make.timed(task_id, "a", 3.0),
        make.timed(task_id, "b", 2.0),
        make.timed(task_id, "c", 2.0),
        make.timed(task_id, "d", 0.1, verified=False),
        make.failed(task_id, "e", "wrong_result"),
    ):
        add(session, new)

    assert best(session).trace_hash == "b"
    assert bests.best_latencies(session, [task_id, 99]) == {task_id: 2.0}
    assert [row.trace_hash for row in bests.top_records(session, task_id, 2)] == ["b", "c"]


def test_records_of_another_target_are_never_returned(session: Session) -> None:
    """A faster record of another machine does not count."""
    add(session, make.timed(make.task(session, core_count=64), "fast", 0.001))
    task_id = make.task(session, core_count=2)

    assert bests.best_records(session, [task_id]) == {}
    add(session, make.timed(make.task(session, core_count=2), "slow", 1.0))
    assert best(session, 2).trace_hash == "slow"
    assert best(session, 64).trace_hash == "fast"


def test_best_records_scan_no_table(sqlite_url: str) -> None:
    """Each step of SQLite's plan is a search by a unique key."""
    engine = database.open_database(sqlite_url)
    statements: list[tuple[str, Any]] = []
    event.listen(
        engine,
        "before_cursor_execute",
        lambda _c, _k, sql, values, *_: statements.append((sql, values)),
    )
    with database.sessions(engine)() as session:
        bests.best_records(session, [1, 2])
        sql, values = statements[-1]
        plan = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all()
    engine.dispose()

    assert len(plan) == 2
    assert all(step.detail.startswith("SEARCH ") for step in plan), plan


def test_the_confirmed_record_replaces_a_lucky_one(session: Session) -> None:
    """Re-measurement decides; later records compete with the winner's confirmed latency."""
    task_id = make.task(session)
    lucky, steady = (
        add(session, make.timed(task_id, name, secs)) for name, secs in (("lucky", 1.0), ("s", 1.2))
    )
    bests.confirm(session, lucky.id, [1.5, 1.4, 1.6])
    bests.confirm(session, steady.id, [1.3, 9.0, 1.2])

    assert bests.choose_confirmed(session, task_id).id == steady.id
    row = session.get_one(BestRecord, task_id)
    assert (row.record_id, row.latency, row.confirmed) == (steady.id, 1.3, True)
    assert best(session).confirmed_secs == [1.3, 9.0, 1.2]

    add(session, make.timed(task_id, "slower than its final", 1.31))
    session.refresh(row)
    assert row.record_id == steady.id
    faster = add(session, make.timed(task_id, "faster than its final", 1.25))
    session.refresh(row)
    assert (row.record_id, row.confirmed) == (faster.id, False)


def test_a_final_chooses_among_those_that_reached_its_end(session: Session) -> None:
    """A rival with few samples that dropped out does not win by them; clock factors count."""
    task_id = make.task(session)
    out, slow_clock, last = (add(session, make.timed(task_id, name, 1.0)) for name in "abc")
    bests.confirm(session, out.id, [0.1])
    bests.confirm(session, slow_clock.id, [2.0, 2.0], clock_factor=0.4)
    bests.confirm(session, last.id, [0.9, 0.9])

    winner = bests.choose_confirmed(session, task_id, [slow_clock.id, last.id])

    assert winner.id == slow_clock.id
    assert bests.best_latencies(session, [task_id]) == {task_id: 0.8}
    assert bests.choose_confirmed(session, task_id).id == out.id


def test_a_disturbed_record_replaces_no_other(session: Session) -> None:
    """It is the best of a task that has no other, until any faster one comes."""
    task_id = make.task(session)
    other_task = make.task(session, "w1")
    first = make.timed(task_id, "first", 2.0, conditions={"disturbed": True})
    rows = measure_records.add_records(
        session,
        [
            make.timed(task_id, "quiet", 3.0),
            make.timed(task_id, "loud", 1.0, conditions={"disturbed": True}),
            make.timed(other_task, "only", 5.0, conditions={"disturbed": True}),
        ],
    )

    assert bests.best_latencies(session, [task_id, other_task]) == {task_id: 3.0, other_task: 5.0}
    assert [row is not None and row.best for row in rows] == [True, False, True]
    assert not add_best(session, first)
    assert add_best(session, make.timed(other_task, "quiet", 4.0))


def test_confirming_needs_a_record_and_samples(session: Session) -> None:
    """A confirmation without a record or without samples is an error."""
    task_id = make.task(session)
    record = add(session, make.timed(task_id, "a", 1.0))

    with pytest.raises(NoValidRecord, match="was confirmed"):
        bests.choose_confirmed(session, task_id)
    with pytest.raises(NoSuchRow, match="no measure record 99"):
        bests.confirm(session, 99, [1.0])
    for samples in ([], [1.0, math.nan]):
        with pytest.raises(ValueError, match="cannot be confirmed by the samples"):
            bests.confirm(session, record.id, samples)


def test_concurrent_writers_leave_the_fastest(engine: Engine) -> None:
    """Threads with their own transactions never lose the best record."""
    factory = database.sessions(engine)
    with factory.begin() as session:
        task_id = make.task(session)

    def measure(n: int) -> None:
        with factory.begin() as session:
            add(session, make.timed(task_id, str(n), 1.0 + (n * 7 % 30)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(measure, range(30)))

    with factory() as session:
        assert bests.best_latencies(session, [task_id]) == {task_id: 1.0}
