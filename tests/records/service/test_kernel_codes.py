"""The code of records waits as rows, and is printed once for all who ask."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from records.models import MeasureRecord, now
from records.service import kernel_codes
from tests.api import make


@pytest.fixture
def record(session: Session) -> int:
    """The number of a record."""
    make.tuned(session)
    number = session.query(MeasureRecord.id).order_by(MeasureRecord.id).first()
    assert number is not None
    return int(number[0])


def test_a_text_is_kept_and_a_failure_is_tried_again(session: Session, record: int) -> None:
    """The part that has waited longest comes first."""
    assert kernel_codes.ask(session, record, ["source", "assembly"])
    for message in (None, "no compiler"):
        row = kernel_codes.begin_next(session)
        assert row is not None
        kernel_codes.finish(session, row, text="define", message=message)
    parts = {row.part: (row.text, row.message) for row in kernel_codes.parts_of(session, record)}
    assert not kernel_codes.is_any_waiting(session)

    kernel_codes.ask(session, record, ["source", "assembly"])
    again = kernel_codes.begin_next(session)

    assert sorted(parts.values(), key=str) == [("define", None), (None, "no compiler")]
    assert again is not None
    assert parts[again.part] == (None, "no compiler")


def test_what_kills_the_worker_fails(session: Session, record: int) -> None:
    """Other parts are printed before it is tried again."""
    kernel_codes.ask(session, record, ["source", "assembly"])
    begun = [kernel_codes.begin_next(session) for _ in range(6)]

    assert [row and row.attempts for row in begun] == [3] * 6
    assert {row.part for row in begun[:2] if row} == {"source", "assembly"}
    assert kernel_codes.begin_next(session) is None
    assert all("died" in (row.message or "") for row in kernel_codes.parts_of(session, record))


def test_too_many_are_refused_and_old_ones_forgotten(
    session: Session, record: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service prints one at a time."""
    monkeypatch.setattr(kernel_codes, "MAX_WAITING", 1)
    assert kernel_codes.ask(session, record, ["source"])
    assert not kernel_codes.ask(session, record, ["assembly"])
    (row,) = kernel_codes.parts_of(session, record)
    row.asked = now() - timedelta(days=2)
    session.flush()

    kernel_codes.forget(session, timedelta(days=1))

    assert not kernel_codes.parts_of(session, record)
