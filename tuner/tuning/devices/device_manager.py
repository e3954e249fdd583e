"""Devices of a coordinator: which accept rounds, for which targets, and which are set aside."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy.orm import Session

from records import measure_records
from records.service import devices
from records.service.devices import DeviceReport
from records.service.service_models import DeviceState
from records.storage.text import storable
from records.tuning import calibrations, drift
from records.tuning.calibrations import NewCalibration
from tuner.devices.calibration.calibrator import CalibrationSettings, Calibrator, Start
from tuner.devices.calibration.state import CalibrationState
from tuner.devices.device import Device
from tuner.engines.base import TargetInfo
from tuner.errors import DeviceLost, TunerError
from tuner.measure.calibration_kernel import CalibrationKernel
from tuner.tuning.context import TuningContext
from tuner.tuning.writing.storage_retry import FATAL_DB_ERRORS

_HEARTBEAT_INTERVAL_SECS = 3.0


# With many devices the interval grows, so that far fewer rows than trials are written.
_MAX_ROWS_PER_SEC = 100.0


class DeviceHeartbeat:
    """Reports the devices of one coordinator; used by one thread."""

    def __init__(self, context: TuningContext) -> None:
        self._context = context
        self._worker = context.worker or f"{socket.gethostname()}:{os.getpid()}"
        self._due = 0.0
        self._last_reports: dict[str, DeviceReport] = {}

    def beat_if_due(self, jobs: Callable[[], Mapping[str, int]]) -> None:
        """Report every device if the interval has passed.

        Args:
            jobs: Returns the job for which each busy device works, by device name.
        """
        now = self._context.now()
        if now >= self._due:
            n_devices = len(self._context.devices)
            self._due = now + max(_HEARTBEAT_INTERVAL_SECS, n_devices / _MAX_ROWS_PER_SEC)
            self.beat(jobs())

    def beat(self, jobs: Mapping[str, int]) -> None:
        """Report every device now, and each device that vanished once more, as lost."""
        reports = {
            device.name: self._report(device, jobs.get(device.name))
            for device in self._context.devices.values()
        }
        lost = [
            replace(report, state="lost", reason="it disappeared", job_id=None)
            for name, report in self._last_reports.items()
            if name not in reports
        ]
        self._last_reports = reports
        rows = [*reports.values(), *lost]
        self._context.record_writer.write(lambda session: devices.report(session, rows))

    def _report(self, device: Device, job_id: int | None) -> DeviceReport:
        state, reason = _state_of(device)
        meter = device.runner.meter
        return DeviceReport(
            name=full_name(device.name),
            worker=self._worker,
            host=host_of(device.name),
            fingerprint=device.fingerprint,
            state=state,
            reason=storable(reason),
            busy_share=meter.share(),
            busy_secs=meter.busy_secs,
            job_id=job_id,
        )


def host_of(device: str) -> str:
    """Return the host in the name of a device: ``HOST/DEVICE`` in fleets, else this machine."""
    host, slash, _ = device.partition("/")
    return host if slash else socket.gethostname()


def full_name(device: str) -> str:
    """Return a name that no device of another host has."""
    return device if "/" in device else f"{socket.gethostname()}/{device}"


def _state_of(device: Device) -> tuple[DeviceState, str]:
    if device.loss_reason:
        return "lost", device.loss_reason
    disagreements = (state.disagreement for state in device.calibrations.values())
    reason = next(filter(None, disagreements), "")
    if reason:
        return "apart", reason
    return ("measuring" if device.n_rounds else "idle"), ""


_LOG = logging.getLogger(__name__)


def make_calibrator(
    context: TuningContext, settings: CalibrationSettings, start: Start
) -> Calibrator:
    """Return a calibrator of the devices of a coordinator."""
    return Calibrator(
        context,
        DatabaseCalibrationLog(context),
        lambda target: CalibrationKernel(context.measure_context, target),
        settings,
        start,
    )


class DatabaseCalibrationLog:
    """Calibration log that goes through the record writer of a coordinator."""

    def __init__(self, context: TuningContext) -> None:
        self._context = context

    def newest_record(self) -> int:
        """Return the id of the newest record."""
        with self._context.sessions() as session:
            return measure_records.newest_id(session)

    def add(self, device: str, target_id: int, kernel: str, secs: float) -> None:
        """Store a calibration."""
        calibration = NewCalibration(full_name(device), host_of(device), target_id, kernel, secs)
        self._context.record_writer.write(lambda session: calibrations.add(session, calibration))

    def mark_agreement(self, state: CalibrationState) -> None:
        """Set the newest record of a state."""

        def set_newest(session: Session) -> None:
            state.record_id = measure_records.newest_id(session)

        self._context.record_writer.write(set_newest)

    def mark_drift(self, device: str, newer_than: int, ratio: float) -> None:
        """Mark the records of a device, and reload the best records that this may change."""
        job_ids = self._context.task_states.job_ids
        self._context.record_writer.write(
            lambda session: drift.mark(session, job_ids, device, newer_than, round(ratio, 3))
        )
        if ratio < 1.0:
            # Records of a device that was too fast lose; a reload flushes the mark first.
            self._context.task_states.reload()


class DeviceManager:
    """The devices of one coordinator; used by one thread.

    A device is asked once which targets it serves. Devices that serve a common target are
    calibrated against each other before their first round and from time to time.

    Args:
        calibration: Limits on how far devices may differ.
        on_answer: Called when a device has answered or was calibrated.
    """

    def __init__(
        self,
        context: TuningContext,
        calibration: CalibrationSettings,
        on_answer: Callable[[], None],
    ) -> None:
        self._context = context
        self._on_answer = on_answer
        self._queries: dict[asyncio.Task[None], Device] = {}
        self._calibrator = make_calibrator(context, calibration, self._query)
        self._heartbeat = DeviceHeartbeat(context)

    @property
    def queries(self) -> list[asyncio.Task[None]]:
        """Questions to devices, and calibrations, that have not ended or were not reaped."""
        return list(self._queries)

    def refresh(
        self,
        targets: Callable[[], Mapping[int, TargetInfo]],
        jobs_by_device: Callable[[], Mapping[str, int]],
    ) -> None:
        """Note devices that appeared or vanished, calibrate due devices, and report all.

        Args:
            targets: Returns the targets of the active jobs, by id.
            jobs_by_device: Returns the job for which each busy device works, by device name.
        """
        self._context.refresh()
        self._calibrator.update(targets)
        self._heartbeat.beat_if_due(jobs_by_device)

    def on_job_admitted(self) -> None:
        """Have calibration look at the devices again: the job may have another target."""
        self._calibrator.is_due = True

    def with_room(self) -> list[Device]:
        """Return the devices that accept another round, those without one first."""
        devices = [device for device in self._context.devices.values() if device.has_room]
        return sorted(devices, key=lambda device: device.n_rounds)

    def served(self, device: Device, targets: Mapping[int, TargetInfo]) -> frozenset[int]:
        """Return the ids of the targets that a device measures for now.

        A device that was not asked about a target is asked, and serves it once it has answered.
        """
        return frozenset(id_ for id_, target in targets.items() if self._serves(device, target))

    def measures(self, target: TargetInfo) -> bool:
        """Return whether any device measures for a target now."""
        return any(self._accepts(device, target) for device in self._context.devices.values())

    def mark_lost(self, device: Device, error: DeviceLost) -> None:
        """Assign no rounds to a lost device for a while, should it still be there."""
        _LOG.warning("device %s is lost: %s", device.name, error)
        device.mark_lost(str(error))

    def reap_queries(self) -> None:
        """Handle the answers that arrived; a device that failed to answer is set aside.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        for query in [query for query in self._queries if query.done()]:
            self._handle_answer(self._queries.pop(query), query)

    def report_last(self) -> None:
        """Report all devices as idle, at the end of a run."""
        self._heartbeat.beat({})

    def _serves(self, device: Device, target: TargetInfo) -> bool:
        if device.supports(target) is None and device not in self._queries.values():
            self._query(device, device.query(target))
        return self._accepts(device, target)

    def _accepts(self, device: Device, target: TargetInfo) -> bool:
        supports = device.supports(target) and not device.loss_reason
        return bool(supports) and self._calibrator.admits(device, target)

    def _query(self, device: Device, question: Coroutine[Any, Any, None]) -> None:
        query = asyncio.ensure_future(question)
        self._queries[query] = device
        query.add_done_callback(lambda _: self._on_answer())

    def _handle_answer(self, device: Device, query: "asyncio.Task[None]") -> None:
        self._calibrator.is_due = True
        error = query.exception()
        if error is None:
            return
        if isinstance(error, FATAL_DB_ERRORS) or not isinstance(error, Exception):
            raise error
        if not isinstance(error, TunerError | OSError):
            _LOG.error("a question to device %s failed", device.name, exc_info=error)
        self.mark_lost(device, DeviceLost(str(error)))
