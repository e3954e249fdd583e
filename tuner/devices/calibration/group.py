"""Group of the devices that support one target."""

from collections.abc import Sequence
from typing import Protocol

from tuner.devices.calibration.state import CalibrationState
from tuner.devices.device import Device
from tuner.engines.base import TargetInfo

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
        target_id: Id of the target.
        target: The target.
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
            device: The device.
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
