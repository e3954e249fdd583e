"""State of one device in a coordinator: its rounds, its targets, its losses."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tuner.devices.calibration.state import CalibrationState
from tuner.devices.cpu_gate import CpuGate
from tuner.devices.runners.base import Runner
from tuner.engines.base import TargetInfo
from tuner.errors import DeviceApart, DeviceLost, RequestError, WorkError
from tuner.workers import result_validation
from tuner.workers.base import CallTimeout

# Builders for which another round is searched and built while one is measured.
_BUILDERS_PER_ROUND = 4
# Pause after a loss before a device gets rounds again; it doubles with every further loss.
_MIN_RETRY_SECS = 5.0
_MAX_RETRY_SECS = 300.0


@dataclass
class Device:
    """Runner of a device, and the rounds that it was given.

    Used in the thread of one event loop.

    Attributes:
        runner: Runner that times on it.
        n_builders: Builders that work for it, if it does not share its cores with them.
        n_rounds: Rounds under way, measured or prepared for it.
        loss_reason: Reason for which it counts as lost and gets no rounds; empty if it does not.
        free_since: End of its last round, by the loop's clock.
        n_losses: Losses since one of its rounds ended well.
        calibrations: Calibration by the spec of each target that it supports.
        is_blocked: True while calibration admits it to none of the targets that are tuned.
    """

    runner: Runner
    n_builders: int = 0
    n_rounds: int = 0
    loss_reason: str = ""
    free_since: float = 0.0
    n_losses: int = 0
    calibrations: dict[str, CalibrationState] = field(default_factory=dict)
    is_blocked: bool = False
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _descriptions: dict[str, TargetInfo | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the device, unique in its executor."""
        return self.runner.name

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Fingerprint from its first description of a target that it supports; empty before."""
        described = [info for info in self._descriptions.values() if info is not None]
        return next((info.device for info in described if not info.problem), {})

    @property
    def max_rounds(self) -> int:
        """Rounds that it may have under way."""
        if self.runner.shares_cores:
            return 1
        return 1 + max(self.n_builders // _BUILDERS_PER_ROUND, 1)

    @property
    def has_room(self) -> bool:
        """True if it accepts another round."""
        return self.n_rounds < self.max_rounds and not (self.loss_reason or self.is_blocked)

    def supports(self, target: TargetInfo) -> bool | None:
        """Return whether it runs a target's kernels; None before :meth:`query`."""
        if target.spec not in self._descriptions:
            return None
        info = self._descriptions[target.spec]
        return info is not None and not info.problem and is_same(info.device, target.device)

    async def query(self, target: TargetInfo) -> None:
        """Ask the runner how it describes a target; without a description it is unsupported.

        Raises:
            CallTimeout: If the runner does not answer in time.
            WorkError: If the runner fails, or its answer is malformed.
        """
        try:
            info = await self.runner.describe(target.spec)
            if not result_validation.is_valid_description(info):
                raise WorkError(f"{self.name} describes itself as {info!r:.200}")
            self._descriptions[target.spec] = info
        except RequestError:
            self._descriptions[target.spec] = None
        except (CallTimeout, WorkError):
            self._descriptions.pop(target.spec, None)
            raise

    def mark_lost(self, reason: str) -> None:
        """Give it no rounds for a while: longer each time, until a round ends well."""
        if self.loss_reason:
            return
        self.loss_reason = reason or "it did not answer"
        secs = min(_MIN_RETRY_SECS * 2.0 ** min(self.n_losses, 10), _MAX_RETRY_SECS)
        self.n_losses += 1
        asyncio.get_running_loop().call_later(secs, self.restore)

    def restore(self) -> None:
        """Give it rounds again, once it has described its targets again."""
        self.loss_reason = ""
        self.is_blocked = False
        self._descriptions.clear()

    @asynccontextmanager
    async def exclusive(self, cpu_gate: CpuGate, spec: str = "") -> AsyncIterator[None]:
        """Measure on it inside: no other round does, and builders rest if they would disturb.

        Args:
            cpu_gate: Gate that builders use.
            spec: Target of the records that are measured; empty for a calibration.

        Raises:
            DeviceLost: If it was lost inside, or while another round had it.
            DeviceApart: If it is kept apart for the target by now.
        """
        async with self._lock, self._marking_lost():
            if spec in self.calibrations and self.calibrations[spec].disagreement:
                raise DeviceApart(self.calibrations[spec].disagreement)
            if not self.runner.shares_cores:
                yield
                return
            async with cpu_gate.exclusive():
                yield

    @asynccontextmanager
    async def _marking_lost(self) -> AsyncIterator[None]:
        """Mark it as lost if it is lost inside, so that rounds that wait for it end at once."""
        if self.loss_reason:
            raise DeviceLost(self.loss_reason)
        try:
            yield
        except DeviceApart:
            raise
        except DeviceLost as error:
            self.mark_lost(str(error))
            raise


def is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two fingerprints are of equal devices."""
    return one == other or dict(one) == dict(other)
