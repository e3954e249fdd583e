"""A disk that fills up while two devices measure: no candidate is blamed, nothing is lost."""

import os
from pathlib import Path

import pytest
from sqlalchemy import select

from records import database
from records.models import MeasureRecord
from tests.engines import toy
from tests.engines.toy_network import Workshop
from tests.faults.conftest import Meanwhile, check_bests, check_counts
from tests.service.test_disk import disk, fill
from tuner.config import Settings
from tuner.executors.local import LocalExecutor
from tuner.runners.local import LocalRunner

__all__ = ["disk"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
_TRIALS = 60


def test_rounds_on_two_devices_fail_and_are_finished_once_there_is_room(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job fails with the reason while both have rounds in flight, and goes on later."""
    monkeypatch.setenv("TOY_RUN_SECS", "0.02")
    settings = Settings("", disk, toy.NAME, 2)
    devices = [LocalRunner(settings, name, shares_cores=False) for name in ("a", "b")]
    engine = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    with LocalExecutor(settings, runners=devices) as executor:
        shop = Workshop(database.sessions(engine), disk, executor)
        ballast: list[Path] = []

        def fill_once() -> None:
            if not ballast and len(shop.trials()) >= 8:
                ballast.append(fill(disk))

        with Meanwhile(fill_once, lambda: 0.02):
            job = shop.session(shop.prepare(), _TRIALS, trials_per_round=4)
            failures = shop.run(job).failures
        assert "No space left on device" in str(failures[job.job_id])
        assert shop.job().state == "failed"
        assert 8 <= len(shop.trials()) < _TRIALS

        ballast[0].unlink()
        shop.tune(shop.prepare(), _TRIALS, trials_per_round=4)

    check_counts(shop.sessions, {1: _TRIALS})
    check_bests(shop.sessions)
    with shop.sessions() as session:
        texts = list(session.scalars(select(MeasureRecord.error_text)))
    assert not [text for text in texts if text and "No space" in text]
    engine.dispose()
