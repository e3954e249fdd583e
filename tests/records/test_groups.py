"""Storing a group of trials equals storing its trials one by one."""

import math
import random
import threading
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from records import database, measure_records
from records.models import (
    ERROR_KINDS,
    BestRecord,
    ImportedRound,
    JobFailure,
    MeasureFeature,
    MeasureRecord,
    Pick,
)
from records.storage.upsert import table
from records.tuning import events
from tests.records import make

_KEPT = (MeasureRecord, MeasureFeature, BestRecord, ImportedRound, JobFailure, Pick)


def _trials(session: Session) -> list[measure_records.NewRecord]:
    """Return trials of several jobs, tasks and picks, and of no pick, with duplicates."""
    rng = random.Random(0)
    task_ids = [make.task(session, f"w{n}") for n in range(3)]
    job_ids = [make.job(session, seed) for seed in range(2)]
    paid = [
        (make.pick(session, job_id, task_id, 9).id, task_id)
        for job_id in job_ids
        for task_id in task_ids
    ]
    return [_trial(rng, *rng.choice([*paid, (None, task_ids[0])])) for _ in range(80)]


def _trial(rng: random.Random, pick_id: int | None, task_id: int) -> measure_records.NewRecord:
    features = rng.choice([None, rng.randbytes(9)])
    shared: dict[str, Any] = {"pick_id": pick_id, "features": features}
    trace_hash = f"t{rng.randrange(40)}"
    if rng.random() < 0.3:
        return make.failed(task_id, trace_hash, rng.choice(ERROR_KINDS), **shared)
    secs = rng.choice([1.0, 2.0, 4.0])
    return make.timed(task_id, trace_hash, secs, verified=rng.random() < 0.8, **shared)


def _everything(session: Session) -> list[list[dict[str, Any]]]:
    """Return all rows except their times, with the ids of records, which have gaps, renumbered."""
    names = select(MeasureRecord.id, MeasureRecord.task_id, MeasureRecord.trace_hash)
    ids = {row[0]: tuple(row[1:]) for row in session.execute(names)}
    tables: list[list[dict[str, Any]]] = []
    for model in _KEPT:
        rows = [dict(row._mapping) for row in session.execute(select(table(model)))]
        for row in rows:
            row.pop("created", None)
            for name in {"record_id", "id"} & row.keys() if model is not Pick else ():
                row[name] = ids[row[name]]
        tables.append(sorted(rows, key=str))
    return tables


def _trial_events(session: Session) -> list[tuple[object, ...]]:
    """Return the events of trials without their record ids."""
    return [
        (event.job_id, event.sequence, event.data["pick"], event.data["latency_secs"])
        for job_id in (1, 2)
        for event in events.events_after(session, job_id, 0)
        if event.kind == "trial"
    ]


@pytest.mark.parametrize("size", [7, 80])
def test_a_group_equals_its_trials_one_by_one(session: Session, empty: Session, size: int) -> None:
    """Records, features, best records, totals, failures and events do not depend on groups."""
    trials = _trials(session)
    assert _trials(empty) == trials

    alone = [measure_records.add_record(empty, new) for new in trials]
    grouped = [
        stored
        for start in range(0, len(trials), size)
        for stored in measure_records.add_records(session, trials[start : start + size])
    ]

    assert [one is None for one in grouped] == [one is None for one in alone]
    assert _everything(session) == _everything(empty)
    assert _trial_events(session) == _trial_events(empty)


def test_results_are_in_the_order_of_the_trials(session: Session) -> None:
    """Duplicates give None, and only the first of equal records becomes the best."""
    task_id, other = make.task(session, "a"), make.task(session, "b")
    pick_id = make.pick(session, make.job(session), task_id, 9, {}).id
    measure_records.add_record(session, make.timed(task_id, "known", 5.0))

    stored = measure_records.add_records(
        session,
        [
            make.timed(task_id, "slow", 4.0, pick_id=pick_id),
            make.timed(task_id, "known", 1.0, pick_id=pick_id),
            make.timed(task_id, "fast", 2.0, pick_id=pick_id),
            make.timed(task_id, "equal", 2.0, pick_id=pick_id),
            make.timed(task_id, "fast", 1.0, pick_id=pick_id),
            make.timed(other, "fast", 3.0),
            make.failed(other, "broken"),
        ],
    )

    outcomes = [None if one is None else (one.latency, one.best) for one in stored]
    assert outcomes == [
        (4.0, False),
        None,
        (2.0, True),
        (2.0, False),
        None,
        (3.0, True),
        (None, False),
    ]
    ids = [one.record_id for one in stored if one is not None]
    assert ids == sorted(ids)
    trial_data = [event.data for event in events.events_after(session, 1, 1)]
    assert [(data["record"], data["best"]) for data in trial_data] == list(
        zip(ids[:3], (False, True, False), strict=True)
    )


def test_an_empty_group_stores_nothing(session: Session) -> None:
    """No row is written."""
    assert measure_records.add_records(session, []) == []


def test_a_group_is_stored_whole_or_not_at_all(engine: Engine) -> None:
    """One invalid trial prevents the others, whether the code or the database refuses it."""
    with database.sessions(engine).begin() as session:
        task_id = make.task(session)
    for wrong, error in (
        (make.timed(task_id, "b", math.nan), ValueError),
        (make.failed(task_id, "b", "tired"), IntegrityError),
        (make.timed(99, "b", 1.0), IntegrityError),
    ):
        with pytest.raises(error), database.sessions(engine).begin() as session:
            measure_records.add_records(session, [make.timed(task_id, "a", 1.0), wrong])

    with database.sessions(engine)() as session:
        assert make.count_by_task(session, [task_id]) == {task_id: (0, 0)}


def test_concurrent_writers_do_not_deadlock(engine: Engine) -> None:
    """Groups with the same traces in any order are all stored, and count once."""
    sessions = database.sessions(engine)
    with sessions.begin() as session:
        task_ids = [make.task(session, f"w{n}") for n in range(3)]
    failed: list[Exception] = []
    together = threading.Barrier(4)

    def write(seed: int) -> None:
        rng = random.Random(seed)
        for number in range(4):
            names = [f"{number}-{n}" for n in range(50)]
            group = [make.timed(task_id, name, 1.0) for task_id in task_ids for name in names]
            rng.shuffle(group)
            together.wait()
            try:
                with sessions.begin() as session:
                    measure_records.add_records(session, group)
            except Exception as error:
                failed.append(error)

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert failed == []
    with sessions() as session:
        assert set(make.count_by_task(session, task_ids).values()) == {(200, 0)}
