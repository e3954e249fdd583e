"""A disk that fills up while two devices measure: no candidate is blamed, nothing is lost."""

import os
from pathlib import Path

import pytest
from sqlalchemy import select

from records import database
from records.models import MeasureRecord
from tests.engines import toy
from tests.engines.toy_network import Workshop
from tests.faults.conftest import Repeat, check_bests, check_counts
from tests.service.test_disk import disk, fill
from tuner.devices.runners.local import LocalRunner
from tuner.executors.local import LocalExecutor
from tuner.settings import Settings

__all__ = ["disk"]

_TRIALS = 60

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")


def test_rounds_in_flight_fail_and_are_finished_once_there_is_room(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job fails with the reason while they have rounds in flight, and goes on later."""
    monkeypatch.setenv("TOY_RUN_SECS", "0.02")
    engine = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    settings = Settings("", disk, toy.NAME, 2)
    devices = [LocalRunner(settings, name, shares_cores=False) for name in ("a", "b")]
    with LocalExecutor(settings, runners=devices) as executor:
        shop = Workshop(database.sessions(engine), disk, executor)
        ballast: list[Path] = []

        def keep_full() -> None:
            # What was under way when it filled up leaves some bytes behind.
            if ballast or len(shop.trials()) >= 8:
                ballast.append(fill(disk, f"ballast-{len(ballast)}"))

        with Repeat(keep_full, lambda: 0.02):
            job = shop.session(shop.prepare(), _TRIALS, trials_per_round=4)
            failures = shop.run(job).failures
        assert "No space left on device" in str(failures[job.job_id])
        assert shop.job().state == "failed"
        assert 8 <= len(shop.trials()) < _TRIALS

        for each in ballast:
            each.unlink()
        shop.tune(shop.prepare(), _TRIALS, trials_per_round=4)

    check_counts(shop.sessions, {1: _TRIALS})
    check_bests(shop.sessions)
    with shop.sessions() as session:
        texts = list(session.scalars(select(MeasureRecord.error_text)))
    assert not [text for text in texts if text and "No space" in text]
    engine.dispose()
