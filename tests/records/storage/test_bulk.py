"""Statements on many rows do what those of SQLAlchemy do, on both databases."""

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from sqlalchemy import bindparam, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from records.models import Event, Job, Pick, Suspect
from records.storage.bulk import BulkInsert, BulkSelect, BulkStatement
from records.storage.upsert import table
from tests.records import make

_AT = datetime(2026, 11, 25, 12, tzinfo=UTC)
_EVENT = table(Event)
_JOB = table(Job)
_SUSPECT = table(Suspect).c
_ADD_SUSPECTS = BulkInsert(
    Suspect,
    ("task_id", "trace_hash", "blame", "created"),
    lambda insert: insert.on_conflict_do_nothing().returning(_SUSPECT.trace_hash),
)


@pytest.mark.parametrize("n_rows", [0, 1, 15, 16, 130, 300])
def test_an_insert_returns_every_row_that_is_new(session: Session, n_rows: int) -> None:
    """Rows that exist are left out, whatever the number of rows."""
    task_id = make.task(session)
    rows = [(task_id, f"t{index}", 0.5, _AT) for index in range(n_rows)]

    first = _ADD_SUSPECTS.execute(session, rows)
    second = _ADD_SUSPECTS.execute(session, [*rows, (task_id, "new", 1.0, _AT)])

    assert sorted(trace_hash for (trace_hash,) in first) == sorted(row[1] for row in rows)
    assert [tuple(row) for row in second] == [("new",)]
    stored = session.scalars(select(Suspect).where(Suspect.trace_hash == "new")).one()
    assert (stored.blame, stored.created) == (1.0, _AT)


def test_values_are_converted_as_their_columns_require(session: Session) -> None:
    """JSON and times are read back as they were, null too; what is not JSON becomes null."""
    job_id = make.job(session)
    append = BulkStatement(_EVENT.insert(), ("job_id", "sequence", "kind", "data", "created"))
    data: list[dict[str, Any]] = [{"a": [1, 2.5, None]}, {"ü": "%s ? :x"}, {"a": [math.nan]}]
    data += [{"a": np.float64(0.1)}, {"a": 2**70, "b": -0.0}]

    append.execute(session, [(job_id, 7 + i, "x", datum, _AT) for i, datum in enumerate(data)])
    append.execute(session, [])

    events = session.scalars(select(Event).where(Event.kind == "x").order_by(Event.sequence)).all()
    assert [event.data for event in events] == [*data[:2], {"a": [None]}, *data[3:]]
    assert [event.created for event in events] == [_AT] * len(data)


def test_a_statement_runs_for_each_row_with_its_constants(session: Session) -> None:
    """A parameter may occur several times, and a constant has one value for all rows."""
    job_id, task_id = make.job(session), make.task(session)
    picks = [make.pick(session, job_id, task_id, 2).id for _ in range(3)]
    columns = table(Pick).c
    change = BulkStatement(
        update(table(Pick))
        .where(columns.id == bindparam("of_pick"))
        .values(n_measured=bindparam("n"), n_failed=columns.n_failed + bindparam("n"), attempts=4),
        ("of_pick", "n"),
    )

    change.execute(session, [(pick_id, 10 * pick_id) for pick_id in picks])

    rows = session.execute(select(Pick.id, Pick.n_measured, Pick.n_failed, Pick.attempts))
    assert sorted(map(tuple, rows)) == [(id_, 10 * id_, 10 * id_, 4) for id_ in picks]


@pytest.mark.parametrize("n_keys", [0, 1, 20, 200])
def test_a_look_up_returns_the_rows_that_exist(session: Session, n_keys: int) -> None:
    """Unknown keys are left out, and JSON is read."""
    request = {"model": "x", "budget": [1, None]}
    ids = [make.job(session, seed) for seed in range(3)]
    session.execute(update(_JOB).where(_JOB.c.id == ids[0]).values(request=request))
    look_up = BulkSelect(select(_JOB.c.id, _JOB.c.state, _JOB.c.request), _JOB.c.id)

    rows = look_up.execute(session, [*ids, *range(1_000, 1_000 + n_keys)])

    assert sorted(map(tuple, rows), key=lambda row: row[0]) == [
        (ids[0], "queued", request),
        (ids[1], "queued", None),
        (ids[2], "queued", None),
    ]
    assert look_up.execute(session, []) == []


def test_a_refused_row_is_an_error_of_the_database(session: Session) -> None:
    """Errors have the types that callers of SQLAlchemy expect."""
    with pytest.raises(IntegrityError):
        _ADD_SUSPECTS.execute(session, [(None, "t", 0.5, _AT)])
