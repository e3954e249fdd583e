"""Tuning from request to result."""

from pathlib import Path

import pytest

from records.models import Pick
from records.picks import NewPick
from tests.engines import toy
from tuner.context import open_context
from tuner.errors import WorkError
from tuner.jobs.preparation import ModelRequest
from tuner.jobs.requests import TuneRequest
from tuner.tuning.run_local import run_separately, run_tuning
from tuner.tuning.session import TuningSession


def test_separate_job_that_fails_is_reported_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of the failed job holds its error, the other one its latency."""
    choose = TuningSession.choose

    def break_second(session: TuningSession) -> Pick | NewPick | None:
        if session.job_id == 2:
            raise WorkError("the device is gone")
        return choose(session)

    monkeypatch.setenv("TUNER_ENGINE", toy.NAME)
    monkeypatch.setattr(TuningSession, "choose", break_second)
    first, second = (ModelRequest(f"zoo:mlp?batch={batch}") for batch in (1, 2))
    with open_context(None, tmp_path) as context:
        good, bad = run_separately(context, TuneRequest(first, (second,), trials=20))

    assert good.error is None
    assert good.n_measured == 20
    assert str(bad.error) == "the device is gone"


def test_busy_share_of_each_device_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device that measured was busy for a part of the time, and never for more than all."""
    monkeypatch.setenv("TUNER_ENGINE", toy.NAME)
    with open_context(None, tmp_path) as context:
        result = run_tuning(context, TuneRequest(ModelRequest("zoo:mlp"), trials=8))

    assert 0.0 < result.busy["local"] <= 1.0
    assert f"busy: local {result.busy['local']:.1%}" in capsys.readouterr().err
