"""Tests that devices which disagree, or drift while a job runs, are kept apart."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from records import jobs
from records.models import MeasureRecord
from records.service import devices
from records.service.service_models import Calibration
from records.tuning import calibrations
from tests.engines import toy
from tests.engines.toy_network import Workshop
from tuner.devices.calibration import calibrator
from tuner.devices.calibration.calibrator import CalibrationSettings
from tuner.devices.device import Device
from tuner.devices.inventory import LocalDevice
from tuner.devices.runners.local import LocalRunner
from tuner.executors.local import LocalExecutor
from tuner.settings import Settings
from tuner.tuning.devices.device_manager import full_name
from tuner.tuning.status import TuningStatus

OFTEN = CalibrationSettings(period_secs=0.05)
PLENTY = 1500


class Fleet:
    """Toy devices with factors of slowness that a test sets."""

    def __init__(self, workshop: Workshop, folder: Path, names: list[str]) -> None:
        self.workshop = workshop
        self._folder = folder
        for name in names:
            self.slow_down(name, 1.0)

    def slow_down(self, name: str, factor: float) -> None:
        """Multiply the latencies of a device from now on."""
        partial = self._folder / f"{name}.partial"
        partial.write_text(str(factor))
        partial.rename(self._folder / name)

    def tune(
        self,
        trials: int = 40,
        on_status: Callable[[TuningStatus], None] = lambda _: None,
        calibration: CalibrationSettings = OFTEN,
    ) -> None:
        """Run a job on the devices."""
        extracted = [toy.make_task(f"part_{i}", weight=1, base_secs=1e-3) for i in range(4)]
        prepared = self.workshop.prepare(extracted=extracted)
        session = self.workshop.session(prepared, trials, on_status, trials_per_round=4)
        failures = self.workshop.run(session, calibration=calibration).failures
        assert not failures

    @property
    def devices(self) -> dict[str, Device]:
        """Devices of the coordinator, by name."""
        return self.workshop.context.devices

    def apart(self, name: str) -> str:
        """Return the reason for which a device is kept apart; empty if it is not."""
        return self.devices[name].calibrations[toy.SPEC].disagreement

    def records(self) -> list[MeasureRecord]:
        """Return every record, the oldest first."""
        with self.workshop.sessions() as session:
            return list(session.scalars(select(MeasureRecord).order_by(MeasureRecord.id)))

    def workers(self) -> set[str]:
        """Return the names of the devices that have records."""
        return {record.worker for record in self.records()}

    def calibrated(self) -> dict[str, float]:
        """Return the last time of each device, seconds, by full name."""
        with self.workshop.sessions() as session:
            return calibrations.latest(session, 1)

    def pause(self) -> None:
        """Pause the job, so that it ends with the rounds under way."""
        with self.workshop.sessions.begin() as session:
            jobs.set_state(session, 1, "paused")

    def states(self) -> dict[str, tuple[str, str]]:
        """Return state and reason of each device in the database."""
        with self.workshop.sessions() as session:
            rows = devices.list_devices(session)
        return {row.name.rpartition("/")[2]: (row.state, row.reason) for row in rows}


@pytest.fixture
def open_fleet(workshop: Workshop, tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Return a function that starts toy devices of given names."""
    opened = []

    def start(*names: str) -> Fleet:
        settings = Settings("", tmp_path, toy.NAME, 2, worker_sandbox="off")
        runners = [
            LocalRunner(
                settings,
                name,
                shares_cores=False,
                device=LocalDevice(name, "llvm", toy.SPEC, {"SLOWNESS_FILE": str(tmp_path / name)}),
            )
            for name in names
        ]
        workers = LocalExecutor(settings, runners=runners)
        opened.append(workers)
        shop = Workshop(workshop.sessions, tmp_path, workers)
        return Fleet(shop, tmp_path, list(names))

    yield start
    for workers in opened:
        workers.close()


def test_a_single_device_is_not_calibrated(workshop: Workshop) -> None:
    """A device without others of its kind is not timed."""
    workshop.tune(workshop.prepare(), 20, trials_per_round=4)

    with workshop.sessions() as session:
        assert session.scalars(select(Calibration)).all() == []


def test_a_device_that_disagrees_from_the_start_measures_nothing(
    open_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other device does the job, and the database has the reason."""
    # The job must last longer than three calibrations of the slow device.
    monkeypatch.setattr(calibrator, "_PAUSE_SECS", 0.01)
    fleet = open_fleet("fast", "slow")
    fleet.slow_down("slow", 1.12)

    fleet.tune()

    secs, states = fleet.calibrated(), fleet.states()
    assert fleet.workers() == {"fast"}
    assert states["slow"] == ("apart", "12 % slower than fast (calibration 10.5 against 9.35 ms)")
    assert states["fast"][0] in ("measuring", "idle")
    assert secs[full_name("slow")] == pytest.approx(1.12 * secs[full_name("fast")])


def test_devices_that_differ_by_noise_measure_all(open_fleet: Callable[..., Fleet]) -> None:
    """Devices within the tolerance all measure."""
    fleet = open_fleet("a", "b", "c")
    fleet.slow_down("b", 1.02)
    fleet.slow_down("c", 1.04)

    fleet.tune(80)

    assert fleet.workers() == {"a", "b", "c"}


def test_the_tolerance_is_a_setting(open_fleet: Callable[..., Fleet]) -> None:
    """With a larger tolerance, both devices measure."""
    fleet = open_fleet("fast", "slow")
    fleet.slow_down("slow", 1.12)

    fleet.tune(80, calibration=CalibrationSettings(tolerance=0.2))

    assert fleet.workers() == {"fast", "slow"}


def test_the_majority_wins(open_fleet: Callable[..., Fleet]) -> None:
    """One device that is faster than two others is the one that is kept apart.

    Until the second of them has been timed, it may measure a few rounds.
    """
    fleet = open_fleet("a", "b", "odd")
    fleet.slow_down("odd", 0.8)

    fleet.tune(80)

    trials = Counter(record.worker for record in fleet.records())
    assert trials["odd"] < min(trials["a"], trials["b"])


def test_a_device_that_drifts_is_kept_apart_marked_and_readmitted(
    open_fleet: Callable[..., Fleet],
) -> None:
    """Drift in the middle of a job marks the records since; they stay, with the ratio."""
    fleet = open_fleet("steady", "drifting")
    stages: list[str] = []

    def change_speed(_: TuningStatus) -> None:
        if not stages and "drifting" in fleet.workers():
            fleet.slow_down("drifting", 3.0)
            stages.append("slow")
        elif stages == ["slow"] and (reason := fleet.apart("drifting")):
            assert reason.startswith("200 % slower than steady")
            fleet.slow_down("drifting", 1.0)
            stages.append("apart")
        elif stages == ["slow", "apart"] and not fleet.apart("drifting"):
            stages.append("back")
            fleet.pause()

    fleet.tune(PLENTY, change_speed)

    marked = [record.conditions for record in fleet.records() if record.conditions is not None]
    assert stages == ["slow", "apart", "back"]
    assert all(conditions == {"device_drift": 3.0} for conditions in marked)
    assert {record.worker for record in fleet.records() if record.conditions} <= {"drifting"}
