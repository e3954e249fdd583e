"""Tells others what each device does: a row a device, every few seconds."""

import os
import socket
from collections.abc import Callable, Mapping

from records import devices
from records.devices import DeviceReport
from records.service_models import DeviceState
from records.text import storable
from tuner.devices.device import Device
from tuner.tuning.context import TuningContext

_EVERY_SECS = 3.0
# Of many devices fewer rows a second are written than there are trials.
_MOST_PER_SEC = 100.0


class DeviceHeartbeat:
    """The devices of one coordinator, as others see them; used by one thread."""

    def __init__(self, context: TuningContext) -> None:
        self._context = context
        self._worker = context.worker or f"{socket.gethostname()}:{os.getpid()}"
        self._due = 0.0
        self._told: dict[str, DeviceReport] = {}

    def beat_if_due(self, jobs: Callable[[], Mapping[str, int]]) -> None:
        """Report every device, if it is time to; one that is gone is reported once more.

        Args:
            jobs: Returns for which job each device measures, by its name.
        """
        now = self._context.now()
        if now >= self._due:
            self._due = now + max(_EVERY_SECS, len(self._context.devices) / _MOST_PER_SEC)
            self.beat(jobs())

    def beat(self, jobs: Mapping[str, int]) -> None:
        """Report every device at once."""
        known = self._context.devices.values()
        there = {each.name: self._report(each, jobs.get(each.name)) for each in known}
        gone = [_lost(report) for name, report in self._told.items() if name not in there]
        self._told = there
        said = [*there.values(), *gone]
        self._context.record_writer.write(lambda session: devices.report(session, said))

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
    """Return where a device is, as far as its name tells: those of fleets are ``HOST/DEVICE``."""
    host, slash, _ = device.partition("/")
    return host if slash else socket.gethostname()


def full_name(device: str) -> str:
    """Return a name that no device of another host has."""
    return device if "/" in device else f"{socket.gethostname()}/{device}"


def _state_of(device: Device) -> tuple[DeviceState, str]:
    if device.loss_reason:
        return "lost", device.loss_reason
    reason = next(
        (each.disagreement for each in device.calibrations.values() if each.disagreement), ""
    )
    if reason:
        return "apart", reason
    return ("measuring" if device.n_rounds else "idle"), ""


def _lost(report: DeviceReport) -> DeviceReport:
    return DeviceReport(
        **(vars(report) | {"state": "lost", "reason": "it is gone", "job_id": None})
    )
