"""Roofs of tasks come from peaks that are measured once for a target."""

import os
from pathlib import Path

import pytest
from sqlalchemy import update

from records import jobs, targets
from records.models import Workload
from tests.engines import toy, toy_peaks
from tuner.context import Context, open_context
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.queries import jobs as job_queries
from tuner.queries.picks import explain
from tuner.schemas import JobView
from tuner.tuning.run_local import run_tuning
from tuner.workers.confinement.environment import MORE_VARIABLES


def tune(context: Context, trials: int = 24, seconds: float | None = None) -> JobView:
    """Tune a toy network, and read the table of its job."""
    spec = TuneSpec(trials=trials, seconds=seconds, trials_per_round=4)
    request = TuneRequest((ModelRequest("zoo:mlp"),), spec)
    (result,) = run_tuning(context, request)
    with context.sessions() as session:
        return job_queries.read_job(session, result.job_id)


def test_the_table_has_the_share_of_the_roof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every toy task takes from once to twice its roof, and picks know the roof of their task."""
    monkeypatch.setenv("TUNER_ENGINE", toy_peaks.NAME)
    with open_context(None, tmp_path) as context:
        view = tune(context)
        with context.sessions() as session:
            peaks = targets.peaks_of(session, jobs.get_job(session, view.job.id).target_id or 0)

    assert peaks is not None
    assert peaks["flops"] == {"float32": 1e9}
    for task in view.tasks:
        assert task.roof_secs == pytest.approx(task.flop / 1e9)
        assert task.roof_share is not None
        assert 0.5 <= task.roof_share <= 1.0
    assert view.last_pick is not None
    assert view.last_pick.terms["roof"] > 0.0
    assert "roof" in explain(view.last_pick.terms)


def test_peaks_and_profiles_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second job uses the peaks of the first, and gives workloads without a profile one."""
    monkeypatch.setenv("TUNER_ENGINE", toy_peaks.NAME)
    with open_context(None, tmp_path) as context:
        tune(context, trials=4)
        with context.sessions.begin() as session:
            target_id = jobs.get_job(session, 1).target_id or 0
            targets.store_peaks(session, target_id, {"flops": {}})
            session.execute(update(Workload).values(profile=None))
            without = job_queries.read_job(session, 1)
        again = tune(context, trials=8)

    assert {task.roof_secs for task in without.tasks} == {None}
    for task in again.tasks:
        assert task.roof_secs == pytest.approx(task.flop / 1e9)


def test_without_peaks_there_is_no_roof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine cannot measure them; the job goes on, and the table has none."""
    monkeypatch.setenv("TUNER_ENGINE", toy.NAME)
    with open_context(None, tmp_path) as context:
        view = tune(context)

    assert view.job.state == "done"
    assert [(task.roof_secs, task.roof_share) for task in view.tasks] == [(None, None)] * 4


def test_peaks_leave_time_for_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that ends before they are measured is spent on trials without them."""
    monkeypatch.setenv("TUNER_ENGINE", toy_peaks.NAME)
    monkeypatch.setenv("TOY_PEAKS_SECS", "60")
    monkeypatch.setenv(MORE_VARIABLES, f"{os.environ.get(MORE_VARIABLES, '')},TOY_PEAKS_SECS")
    with open_context(None, tmp_path) as context:
        view = tune(context, trials=8, seconds=20.0)

    assert view.job.trials == 8
    assert view.tasks[0].roof_secs is None
