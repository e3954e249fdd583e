"""Calibration of devices: a device that disagrees with the others, or drifts, gets no rounds.

Where several devices support a target, each times one kernel before its first round, and again
now and then between two rounds. A device that disagrees with the others gets no more rounds of
that target until it agrees.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tuner.devices.calibration.state import CalibrationState, Disagreement, find_disagreements
from tuner.devices.device import Device
from tuner.engines.base import TargetInfo
from tuner.settings import DEFAULT_DEVICE_TOLERANCE

# Longest time that a device which can neither be queried nor timed keeps the others waiting.
_MAX_WAIT_SECS = 30.0


class Kernel(Protocol):
    """Kernel that every device of a group times."""

    @property
    def name(self) -> str:
        """Hash of the kernel; empty before it is built."""

    async def artifact(self) -> str | None:
        """Return its artifact, building it at the first call; None if that failed."""

    async def time(self, artifact: str, device: Device) -> float:
        """Return its shortest time on a device, seconds; inf if it fails there.

        Raises:
            DeviceLost: If the device was lost.
        """


class DeviceGroup:
    """Devices that support a target, and their times of one kernel.

    Attributes:
        kernel: Kernel that they are compared by.
        secs: Last time of the kernel, seconds, by device; also of devices that left lately.
    """

    def __init__(
        self, target_id: int, target: TargetInfo, kernel: Kernel, newest_record: int
    ) -> None:
        self.target_id = target_id
        self.target = target
        self.kernel = kernel
        self.secs: dict[str, float] = {}
        self._last_seen: dict[str, float] = {}
        self._newest_record = newest_record

    def update(self, devices: Sequence[Device], now: float, remembered_secs: float) -> None:
        """Note the present devices, and forget times of devices that left long ago."""
        for device in devices:
            self._last_seen[device.name] = now
            if self.target.spec not in device.calibrations:
                device.calibrations[self.target.spec] = CalibrationState(now, self._newest_record)
        for name in [name for name in self.secs if now - self._last_seen[name] > remembered_secs]:
            del self.secs[name]

    def has_only(self, device: Device) -> bool:
        """Return whether no other device was timed lately."""
        return not self.secs.keys() - {device.name}

    def state(self, device: Device) -> CalibrationState:
        """Return the calibration of a device of the group."""
        return device.calibrations[self.target.spec]

    def admit_alone(self, device: Device, now: float, *, is_complete: bool) -> None:
        """Admit the only device without calibration.

        Args:
            now: Time by the loop's clock.
            is_complete: True if all other devices are known to support other targets.
        """
        state = self.state(device)
        if is_complete or now - state.first_seen >= _MAX_WAIT_SECS:
            state.disagreement = ""
            state.is_admitted = state.was_admitted = True

    def admit_newcomers(self, devices: Sequence[Device], now: float) -> None:
        """Withhold the first round of devices until all can be compared."""
        states = [self.state(device) for device in devices]
        n_untimed = sum(state.secs is None for state in states)
        for state in states:
            if state.is_admitted and not state.was_admitted:
                is_late = now - state.first_seen >= _MAX_WAIT_SECS
                state.is_admitted = state.was_admitted = not n_untimed or is_late


# Times that a device is timed before it is kept apart, and the pause between: what disturbs it
# may pass.
_ATTEMPTS = 3
_PAUSE_SECS = 1.0
# A device that is kept apart has nothing else to do, so it is calibrated this much more often.
_APART_SPEEDUP = 5.0
_UPDATE_INTERVAL_SECS = 0.5
# Above this number of devices, updates take a fiftieth of the time at most.
_MANY_DEVICES = 16
_PAUSE_PER_UPDATE = 50.0
# Periods for which the time of a device counts after it left.
_REMEMBERED_PERIODS = 2.0

_LOG = logging.getLogger(__name__)

# Runs work on a device; its end sets :attr:`Calibrator.is_due`.
Start = Callable[[Device, Coroutine[Any, Any, None]], None]


@dataclass(frozen=True)
class CalibrationSettings:
    """Strictness and frequency of calibration.

    Attributes:
        tolerance: Share by which devices of one kind may differ.
        period_secs: Time between two calibrations of a device; shorter for one kept apart.
    """

    tolerance: float = DEFAULT_DEVICE_TOLERANCE
    period_secs: float = 300.0


class DevicePool(Protocol):
    """Devices of a coordinator, and its clock."""

    @property
    def devices(self) -> Mapping[str, Device]:
        """Devices that are there now, by name."""

    def now(self) -> float:
        """Return the time by the loop's clock, seconds."""


class CalibrationLog(Protocol):
    """Record of calibrations; its writes may be deferred, and keep their order."""

    def newest_record(self) -> int:
        """Return the id of the newest measure record, 0 if there is none."""

    def add(self, device: str, target_id: int, kernel: str, secs: float) -> None:
        """Store the time of a calibration kernel on a device."""

    def mark_agreement(self, state: CalibrationState) -> None:
        """Set a state's ``record_id`` to the newest record, once earlier records are stored."""

    def mark_drift(self, device: str, newer_than: int, ratio: float) -> None:
        """Mark the records of a device that are newer than one, as it may have drifted since.

        Args:
            newer_than: Id of the newest record at which the device agreed.
            ratio: Its time divided by that of the nearest device that agrees.
        """


class Calibrator:
    """Admission of devices to rounds, by calibration; used in the thread of the event loop.

    Args:
        pool: Devices and clock.
        log: Record of calibrations.
        settings: Strictness and frequency.
        start: Runs a calibration on a device.

    Attributes:
        is_due: True if something happened since the last update.
    """

    def __init__(
        self,
        pool: DevicePool,
        log: CalibrationLog,
        kernel_for: Callable[[TargetInfo], Kernel],
        settings: CalibrationSettings,
        start: Start,
    ) -> None:
        self._pool = pool
        self._log = log
        self._kernel_for = kernel_for
        self._settings = settings
        self._start = start
        self._groups: dict[int, DeviceGroup] = {}
        self._updated = self._paused_until = -math.inf
        self.is_due = True

    def update(self, targets: Callable[[], Mapping[int, TargetInfo]]) -> None:
        """Decide which devices may have rounds, and start calibrations that are due.

        Args:
            targets: Returns the targets that are tuned for, by id; called only if an update is
                due.
        """
        now = self._pool.now()
        is_early = not self.is_due and now - self._updated < _UPDATE_INTERVAL_SECS
        if now < self._paused_until or is_early:
            return
        self.is_due, self._updated = False, now
        unblocked: set[str] = set()
        for target_id, target in targets().items():
            if target_id not in self._groups:
                self._groups[target_id] = DeviceGroup(
                    target_id, target, self._kernel_for(target), self._log.newest_record()
                )
            unblocked |= self._update_group(self._groups[target_id], now)
        devices = self._pool.devices
        for device in devices.values():
            device.is_blocked = device.name not in unblocked
        if len(devices) > _MANY_DEVICES:
            done = self._pool.now()
            self._paused_until = done + _PAUSE_PER_UPDATE * (done - now)

    def admits(self, device: Device, target: TargetInfo) -> bool:
        """Return whether a device that supports a target gets rounds of it now."""
        state = device.calibrations.get(target.spec)
        self.is_due |= state is None
        return state is not None and state.is_admitted

    def _update_group(self, group: DeviceGroup, now: float) -> set[str]:
        """Return the devices that get rounds of a target, or were not queried about it yet."""
        answers = [
            (device, device.supports(group.target))
            for device in self._pool.devices.values()
            if not device.loss_reason
        ]
        devices = [device for device, is_supported in answers if is_supported]
        unqueried = {device.name for device, is_supported in answers if is_supported is None}
        group.update(devices, now, _REMEMBERED_PERIODS * self._settings.period_secs)
        if len(devices) == 1 and group.has_only(devices[0]):
            group.admit_alone(devices[0], now, is_complete=not unqueried)
        else:
            disagreements = find_disagreements(group.secs, self._settings.tolerance)
            for device in devices:
                # Admit a device, or have it calibrated first.
                disagreement = disagreements.get(device.name)
                state = group.state(device)
                is_apart = bool(state.disagreement)
                is_new = state.secs is None
                is_doubtful = disagreement is not None and not is_apart and not state.is_thorough
                period = self._settings.period_secs / (_APART_SPEEDUP if is_apart else 1.0)
                is_old = now - state.calibrated >= period
                if (is_new or is_doubtful or is_old) and not state.is_calibrating:
                    state.is_calibrating = True
                    self._start(device, self._calibrate(group, device))
                state.is_admitted = not (is_new or is_doubtful or is_apart)
            group.admit_newcomers(devices, now)
        return unqueried | {device.name for device in devices if group.state(device).is_admitted}

    async def _calibrate(self, group: DeviceGroup, device: Device) -> None:
        """Time the kernel between two rounds, several times if it disagrees."""
        state = group.state(device)
        try:
            secs, n_timed = math.inf, _ATTEMPTS
            artifact = await group.kernel.artifact()
            if artifact is not None:
                for n_timed in range(1, _ATTEMPTS + 1):
                    await asyncio.sleep(_PAUSE_SECS if n_timed > 1 else 0.0)
                    secs = min(secs, await group.kernel.time(artifact, device))
                    if self._disagreement(group, device, secs) is None:
                        break
        finally:
            state.is_calibrating = False
        state.secs, state.calibrated = secs, self._pool.now()
        state.is_thorough = n_timed == _ATTEMPTS
        if math.isfinite(secs):
            self._log.add(device.name, group.target_id, group.kernel.name, secs)
        self._conclude(device, state, self._disagreement(group, device, secs))

    def _disagreement(self, group: DeviceGroup, device: Device, secs: float) -> Disagreement | None:
        """Note the time of a device and compare it with the others'."""
        group.secs[device.name] = secs
        return find_disagreements(group.secs, self._settings.tolerance).get(device.name)

    def _conclude(
        self, device: Device, state: CalibrationState, disagreement: Disagreement | None
    ) -> None:
        """Keep a device apart that disagrees, or note that it agrees."""
        if disagreement is None:
            if state.disagreement:
                _LOG.info("device %s agrees with the others again", device.name)
            state.disagreement = ""
            self._log.mark_agreement(state)
            return
        if not state.disagreement:
            _LOG.warning("device %s is kept apart: %s", device.name, disagreement.reason)
            if math.isfinite(disagreement.ratio):
                self._log.mark_drift(device.name, state.record_id, disagreement.ratio)
        state.disagreement = disagreement.reason
