"""Tuning from request to result."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from records.models import Job, Pick
from records.picks import NewPick
from tests.engines import toy
from tuner.context import open_context
from tuner.devices.device import Device
from tuner.engines.base import TargetInfo
from tuner.errors import WorkError
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.tuning.job.run_deadline import RunDeadline, deadline_of
from tuner.tuning.run_local import run_tuning
from tuner.tuning.session import TuningSession
from tuner.tuning.status import TuningCallbacks
from tuner.workers.pool import Pool, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


def test_separate_job_that_fails_is_reported_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of the failed job holds its error, the other one its latency."""
    choose = TuningSession.next_pick

    def break_second(session: TuningSession) -> Pick | NewPick | None:
        if session.job_id == 2:
            raise WorkError("the search is broken")
        return choose(session)

    monkeypatch.setenv("TUNER_ENGINE", toy.NAME)
    monkeypatch.setattr(TuningSession, "next_pick", break_second)
    first, second = (ModelRequest(f"zoo:mlp?batch={batch}") for batch in (1, 2))
    with open_context(None, tmp_path) as context:
        good, bad = run_tuning(
            context, TuneRequest((first, second), TuneSpec(trials=20)), separate=True
        )

    assert good.error is None
    assert good.n_measured == 20
    assert str(bad.error) == "the search is broken"


def test_a_suspended_run_keeps_no_locks(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends a transaction in which it is silent, so that another run goes on."""
    monkeypatch.setenv("TUNER_ENGINE", toy.NAME)
    with open_context(postgres_url, tmp_path) as context:
        request = TuneRequest((ModelRequest("zoo:mlp"),), TuneSpec(trials=8))
        run_tuning(context, request)
        with context.engine.connect() as connection:
            limit = connection.execute(text("SHOW idle_in_transaction_session_timeout"))
            assert limit.scalar_one() == "5s"


def test_a_run_reports_status_and_busy_shares_to_its_callbacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device that measured was busy for a part of the time; the run itself prints nothing."""
    monkeypatch.setenv("TUNER_ENGINE", toy.NAME)
    phases: list[str] = []
    shares: list[Mapping[str, float]] = []
    callbacks = TuningCallbacks(
        on_status=lambda status: phases.append(status.phase), on_busy=shares.append
    )
    with open_context(None, tmp_path) as context:
        request = TuneRequest((ModelRequest("zoo:mlp"),), TuneSpec(trials=8))
        (result,) = run_tuning(context, request, callbacks)

    assert 0.0 < result.busy["local"] <= 1.0
    assert shares == [result.busy]
    assert phases[0] == "choosing"
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize(("seconds", "is_short"), [(50.0, True), (1000.0, False)])
def test_a_budget_that_may_end_before_the_first_trial_is_noted_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, *, is_short: bool
) -> None:
    """A command that took long to start needs long for the rest."""
    monkeypatch.setenv("TUNER_ENGINE", toy.NAME)
    notes: list[str] = []
    spec = TuneSpec(trials=4, seconds=seconds)
    started = time.monotonic() - 10.0
    with open_context(None, tmp_path) as context:
        request = TuneRequest((ModelRequest("zoo:mlp"),), spec, started=started)
        run_tuning(context, request, TuningCallbacks(on_note=notes.append))

    assert any("may end before" in note for note in notes) is is_short


def test_a_run_that_still_waits_when_its_seconds_are_spent_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is paused, and a note says that nothing was measured beside its table."""

    async def wait(_device: Device, _target: TargetInfo) -> None:
        await asyncio.Event().wait()

    monkeypatch.setenv("TUNER_ENGINE", toy.NAME)
    monkeypatch.setattr(Device, "query", wait)
    monkeypatch.setattr(RunDeadline, "end_secs", 0.1)
    notes: list[str] = []
    with open_context(None, tmp_path) as context:
        request = TuneRequest((ModelRequest("zoo:mlp"),), TuneSpec(seconds=1000.0))
        (result,) = run_tuning(context, request, TuningCallbacks(on_note=notes.append))
        with context.readers() as session:
            assert session.get_one(Job, 1).state == "paused"

    assert result.n_measured == 0
    assert result.error is None
    assert any("before the first trial" in note for note in notes)


@pytest.mark.parametrize(("start_secs", "kept_secs"), [(1.0, 0.3), (35.0, 2.4)])
def test_a_slow_start_keeps_a_small_part_of_the_seconds_for_the_end(
    start_secs: float, kept_secs: float
) -> None:
    """The end takes a part of the time of the start, and a run is not cut short for it."""
    deadline = deadline_of(60.0, 100.0, start_secs)

    assert deadline.started == pytest.approx(100.0 - kept_secs)


def test_the_deadline_of_a_run_ends_the_calls_of_its_workers(tmp_path: Path) -> None:
    """A model that is still being loaded then is not waited for."""
    deadline = RunDeadline(0.2, time.monotonic())
    pool = Pool(WorkerSettings(1, tmp_path / "log"))

    with (
        pytest.raises(WorkError, match=r"the 0.2 s of the budget ended before the first trial"),
        deadline.limiting(pool) as worker,
    ):
        worker.call("time", "sleep", 60.0)
