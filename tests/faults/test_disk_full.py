"""A disk that fills up while two devices measure: no candidate is blamed, nothing is lost."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import select

from records import database
from records.models import MeasureRecord
from tests.engines import toy
from tests.engines.toy_network import Workshop
from tests.faults.conftest import (
    DEVICE,
    START_SECS,
    Location,
    Repeat,
    check_bests,
    check_counts,
)
from tests.service.test_disk import disk, fill
from tests.waiting import wait_for
from tuner.devices.runners.local import LocalRunner
from tuner.executors.base import Executor
from tuner.executors.local import LocalExecutor
from tuner.executors.ray.executor import RayExecutor
from tuner.settings import Settings

__all__ = ["disk"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")


@contextmanager
def open_workers(location: Location, disk: Path) -> Iterator[Executor]:
    """Open devices that lay out on a disk what they run; on a cluster one of them does."""
    if location.rack is None:
        settings = Settings("", disk, toy.NAME, 2)
        devices = [LocalRunner(settings, name, shares_cores=False) for name in ("a", "b")]
        with LocalExecutor(settings, runners=devices) as executor:
            yield executor
        return
    location.rack.add("tight", DEVICE, environ={"TMPDIR": str(disk)})
    settings = Settings("", disk, toy.NAME, 2, ray_address=location.rack.address)
    try:
        with RayExecutor(settings) as cluster:
            names = ["left/cpu", "right/cpu", "tight/cpu"]
            wait_for(lambda: sorted(x.name for x in cluster.runners) == names, START_SECS)
            yield cluster
    finally:
        location.rack.kill("tight")


@pytest.mark.parametrize(
    ("location", "trials"),
    [
        ("local", 60),
        pytest.param("ray", 400, marks=pytest.mark.slow("40 s: 400 trials on Ray")),
    ],
    indirect=["location"],
)
def test_rounds_in_flight_fail_and_are_finished_once_there_is_room(
    location: Location, trials: int, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job fails with the reason while they have rounds in flight, and goes on later."""
    monkeypatch.setenv("TOY_RUN_SECS", "0.02")
    engine = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    with open_workers(location, disk) as executor:
        workers = cast("LocalExecutor", executor)
        shop = Workshop(database.sessions(engine), tmp_path if location.rack else disk, workers)
        ballast: list[Path] = []

        def keep_full() -> None:
            # What was under way when it filled up leaves some bytes behind.
            if ballast or len(shop.trials()) >= 8:
                ballast.append(fill(disk, f"ballast-{len(ballast)}"))

        with Repeat(keep_full, lambda: 0.02):
            job = shop.session(shop.prepare(), trials, trials_per_round=4)
            failures = shop.run(job).failures
        assert "No space left on device" in str(failures[job.job_id])
        assert shop.job().state == "failed"
        assert 8 <= len(shop.trials()) < trials

        for each in ballast:
            each.unlink()
        shop.tune(shop.prepare(), trials, trials_per_round=4)

    check_counts(shop.sessions, {1: trials})
    check_bests(shop.sessions)
    with shop.sessions() as session:
        texts = list(session.scalars(select(MeasureRecord.error_text)))
    assert not [text for text in texts if text and "No space" in text]
    engine.dispose()
