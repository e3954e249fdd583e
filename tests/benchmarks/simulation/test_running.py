"""Whole simulations: the coordinator on a simulated fleet."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from benchmarks.simulation.running import simulate
from benchmarks.simulation.scenario import Costs, Faults, Scenario
from records import database, picks
from records.models import Job, MeasureRecord, Pick
from scheduler.replay import Recording
from tuner.errors import WorkError

CALM = Faults(0.0, 0.0, 0.0, 0.0, 0.0, 60.0, 0.0)
FAST = Costs(search_secs=0.01, build_secs=0.01, run_secs=0.01)
SMALL = Scenario(
    n_devices=3,
    n_networks=2,
    n_tasks=8,
    secs=60.0,
    warm_up_secs=30.0,
    trials_per_round=8,
    costs=Costs(run_secs=1.0),
    faults=CALM,
)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Return an empty database."""
    opened = database.open_database(f"sqlite:///{tmp_path / 'records.db'}")
    yield opened
    opened.dispose()


def test_every_trial_is_stored_once(
    engine: Engine, tmp_path: Path, curves: list[Recording]
) -> None:
    """The database has exactly the reported trials; what the end cut off is left to its round."""
    report = simulate(SMALL, curves, engine, tmp_path)

    assert report.check.is_clean
    with database.sessions(engine)() as session:
        assert session.scalar(select(func.count()).select_from(MeasureRecord)) == (
            report.check.n_records
        )
        assert set(session.scalars(select(Job.state))) == {"paused"}
        cut_off = session.scalars(select(Pick).where(~Pick.done))
        assert all(pick.n_measured < pick.n_trials for pick in cut_off)
        assert set(session.scalars(select(MeasureRecord.worker))) == {
            "device-0",
            "device-1",
            "device-2",
        }


def test_job_whose_rounds_cannot_be_stored_fails_alone(
    engine: Engine, tmp_path: Path, curves: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rounds are stored together with those of other jobs, which continue."""
    add_picks = picks.add_picks
    n_groups = 0

    def refusing(session: Session, new: list[picks.NewPick]) -> list[Pick]:
        nonlocal n_groups
        is_bad = any(each.job_id == 2 for each in new)
        n_groups += is_bad and len(new) > 1
        if is_bad and n_groups:
            raise ValueError("no")
        return add_picks(session, new)

    monkeypatch.setattr(picks, "add_picks", refusing)
    busy = Scenario(
        9, 9, 36, secs=2.0, warm_up_secs=1.0, trials_per_round=2, costs=FAST, faults=CALM
    )
    with pytest.raises(WorkError, match="internal error: ValueError: no"):
        simulate(busy, curves, engine, tmp_path)

    assert n_groups > 0
    with database.sessions(engine)() as session:
        states = list(session.scalars(select(Job.state).order_by(Job.id)))
        assert states == ["paused", "failed", *["paused"] * 7]


def test_devices_measure_at_the_given_rate(
    engine: Engine, tmp_path: Path, curves: list[Recording]
) -> None:
    """Three devices do one run a second each on average, and almost nothing between runs."""
    report = simulate(SMALL, curves, engine, tmp_path)

    assert 0.5 < report.trials_per_sec / (3 * (1.0 - report.idle_share)) < 2.0
    assert report.secs == pytest.approx(30.0, abs=1.0)


def test_nothing_is_lost_whatever_goes_wrong(
    engine: Engine, tmp_path: Path, curves: list[Recording]
) -> None:
    """Builds, runs, workers and devices fail, and every trial that ended is stored once."""
    faults = Faults(0.2, 0.2, 0.02, 0.05, 60.0, 5.0, 0.5)

    report = simulate(replace(SMALL, secs=120.0, faults=faults), curves, engine, tmp_path)

    assert report.check.is_clean
    assert report.n_trials > 0


def test_kinds_of_device_measure_their_own_targets_alone(
    engine: Engine, tmp_path: Path, curves: list[Recording]
) -> None:
    """A job's records come from devices of its fingerprint."""
    simulate(replace(SMALL, n_fingerprints=2), curves, engine, tmp_path)

    statement = select(Job.id, MeasureRecord.worker).join(Pick, Pick.job_id == Job.id)
    with database.sessions(engine)() as session:
        rows = session.execute(
            statement.join(MeasureRecord, MeasureRecord.pick_id == Pick.id)
        ).all()
    workers = {job: {name for job_id, name in rows if job_id == job} for job, _ in rows}
    assert workers == {1: {"device-0", "device-2"}, 2: {"device-1"}}


def test_a_second_simulation_continues_with_the_records_of_the_first(
    engine: Engine, tmp_path: Path, curves: list[Recording]
) -> None:
    """Its own trials are checked, and none is missing."""
    first = simulate(SMALL, curves, engine, tmp_path)

    second = simulate(SMALL, curves, engine, tmp_path)

    assert second.check.is_clean
    with database.sessions(engine)() as session:
        stored = session.scalar(select(func.count()).select_from(MeasureRecord))
    assert stored == first.check.n_records + second.check.n_records
