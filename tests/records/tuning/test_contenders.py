"""All records race that could be the fastest given their noise, and no final runs in vain."""

import pytest
from sqlalchemy.orm import Session

from records import bests, measure_records
from records.models import MeasureRecord
from records.tuning.contenders import contenders, noise
from tests.records import make


def add(session: Session, name: str, *secs: float, disturbed: bool = False) -> MeasureRecord:
    """Store a trial of the usual task."""
    conditions = {"disturbed": True} if disturbed else None
    new = make.timed(make.task(session), name, *secs, conditions=conditions)
    record = measure_records.add_record(session, new)
    assert record is not None
    return record


def names(session: Session, limit: int = 8) -> list[str]:
    """Return the contenders of the usual task."""
    return [record.trace_hash for record in contenders(session, make.task(session), limit)]


def confirm(session: Session, *records: MeasureRecord, secs: list[float]) -> None:
    """Store the samples of a final, the same for each record, and choose the best."""
    for record in records:
        bests.confirm(session, record.id, secs)
    bests.choose_confirmed(session, records[0].task_id, [record.id for record in records])


def test_records_race_whose_noise_reaches_the_best(session: Session) -> None:
    """Steady samples have a noise of 3 %, scattered ones more, disturbed ones a quarter."""
    add(session, "best", 1.0, 1.0, 1.0)
    add(session, "near", 1.05, 1.05, 1.05)
    add(session, "far", 1.1, 1.1, 1.1)
    add(session, "scattered", 1.0, 1.15, 1.4)
    add(session, "disturbed", 1.3, 1.3, 1.3, disturbed=True)
    add(session, "too far", 2.0, 2.0, 2.0)

    assert names(session) == ["best", "near", "scattered", "disturbed"]
    assert names(session, limit=2) == ["best", "near"]


def test_a_task_without_records_has_no_contenders(session: Session) -> None:
    """Nothing can race."""
    assert names(session) == []


def test_a_single_record_needs_no_final(session: Session) -> None:
    """No choice among many made it lucky."""
    add(session, "only", 1.0)

    assert names(session) == []


def test_a_single_record_that_was_disturbed_races_alone(session: Session) -> None:
    """The final finds its latency."""
    add(session, "only", 1.0, disturbed=True)

    assert names(session) == ["only"]


def test_a_confirmed_winner_races_again_only_with_newcomers(session: Session) -> None:
    """Its confirmed latency counts, not the lucky one of its first samples."""
    lucky = add(session, "lucky", 0.9, 0.9, 0.9)
    rival = add(session, "rival", 0.92, 0.92, 0.92)
    confirm(session, lucky, rival, secs=[1.0, 1.0, 1.0])
    assert names(session) == []

    add(session, "slow", 1.06, 1.06, 1.06)
    assert names(session) == []
    add(session, "honest", 0.93, 0.93, 0.93)
    assert names(session) == ["honest", "lucky"]


def test_a_newcomer_within_the_noise_races_too(session: Session) -> None:
    """It need not beat the confirmed latency by its own."""
    confirm(session, add(session, "winner", 1.0), secs=[1.0, 1.0, 1.0])
    add(session, "newcomer", 1.02, 1.02, 1.02)

    assert names(session) == ["winner", "newcomer"]


def test_noise_falls_with_the_number_of_samples(session: Session) -> None:
    """Four times the samples with the same scatter halve it."""
    few = add(session, "few", *[0.9, 1.0, 1.1] * 3)
    many = add(session, "many", *[0.9, 1.0, 1.1] * 12)

    assert noise(few) == pytest.approx(2 * noise(many))
    assert noise(few) == pytest.approx(2 * 1.2533 * 0.14826 / 3)
