"""Heartbeat of devices: one status row per device in the database, written every few seconds."""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace

from records.service import devices
from records.service.devices import DeviceReport
from records.service.service_models import DeviceState
from records.text import storable
from tuner.devices.device import Device
from tuner.tuning.context import TuningContext

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
