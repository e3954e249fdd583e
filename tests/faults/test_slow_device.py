"""A device of a cluster that becomes three times slower in the middle of a job."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from sqlalchemy import select

from records import database, jobs
from records.models import MeasureRecord
from tests.engines import toy
from tests.engines.toy_network import Workshop
from tests.faults.conftest import DEVICE, NODES, START_SECS, check_bests, check_counts
from tests.ray_rack import Rack
from tests.waiting import wait_for
from tuner.devices.calibration.calibrator import CalibrationSettings
from tuner.executors.ray.executor import RayExecutor
from tuner.settings import Settings
from tuner.tuning.status import TuningStatus

if TYPE_CHECKING:
    from tuner.executors.local import LocalExecutor

_SLOW = "drifting/cpu"
_OFTEN = CalibrationSettings(period_secs=0.5)


class Brake:
    """Multiplies what everything takes on a device."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(1.0)

    def set(self, factor: float) -> None:
        """Slow the device down by a factor from now on."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(str(factor))
        partial.rename(self.path)


@pytest.fixture
def brake(rack: Rack, tmp_path: Path) -> Iterator[Brake]:
    """The brake of a third device of the cluster."""
    made = Brake(tmp_path / "slowness")
    rack.add("drifting", DEVICE, environ={"TOY_SLOWNESS": str(made.path)})
    yield made
    rack.kill("drifting")


@pytest.mark.slow("times a device that slows down for 20 s")
def test_device_that_slows_down_is_found_marked_and_taken_back(
    rack: Rack, brake: Brake, tmp_path: Path
) -> None:
    """Rounds of the device stop, and its records carry the factor by which they are off."""
    engine = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    settings = Settings("", tmp_path, toy.NAME, 2, ray_address=rack.address)
    seen: list[str] = []
    with RayExecutor(settings) as executor:
        wait_for(lambda: len(executor.runners) == len(NODES) + 1, START_SECS)
        shop = Workshop(database.sessions(engine), tmp_path, cast("LocalExecutor", executor))

        def watch(_: TuningStatus) -> None:
            if not seen and any(each.worker == _SLOW for each in records(shop)):
                brake.set(3.0)
                seen.append("slow")
            elif seen == ["slow"] and (reason := apart(shop)):
                assert reason.startswith("200 % slower than ")
                brake.set(1.0)
                seen.append("apart")
            elif seen == ["slow", "apart"] and not apart(shop):
                seen.append("back")
                with shop.sessions.begin() as session:
                    jobs.set_state(session, 1, "paused")

        job = shop.session(shop.prepare(), 1200, watch, trials_per_round=4)
        failures = shop.run(job, calibration=_OFTEN).failures

    assert failures == {}
    assert seen == ["slow", "apart", "back"]
    marked = [each for each in records(shop) if each.conditions is not None]
    assert {each.worker for each in marked} <= {_SLOW}
    assert all(each.conditions == {"device_drift": 3.0} for each in marked)
    check_counts(shop.sessions, {1: len(records(shop))})
    check_bests(shop.sessions)
    engine.dispose()


def apart(shop: Workshop) -> str:
    """Return why the device is kept apart now."""
    return shop.context.devices[_SLOW].calibrations[toy.SPEC].disagreement


def records(shop: Workshop) -> list[MeasureRecord]:
    """Return every record."""
    with shop.sessions() as session:
        return list(session.scalars(select(MeasureRecord)))
