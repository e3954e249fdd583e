"""A coordinator's view of its devices: what each is given, and whom it serves."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tuner.devices.cpu_gate import CpuGate
from tuner.devices.runners.base import Runner
from tuner.engines.base import TargetInfo
from tuner.errors import DeviceApart, DeviceLost, RequestError, WorkError
from tuner.workers import result_validation
from tuner.workers.base import CallTimeout

# Searched and built while the round before is measured, on devices that builders do not disturb.
_ROUNDS_AHEAD = 1
# A device that was lost but is still there is tried again then, and later if it is lost again.
_RETRY_SECS = 5.0
_MOST_RETRY_SECS = 300.0


@dataclass
class CalibrationState:
    """Calibration of a device for one target; see :mod:`tuner.tuning.calibration`.

    Attributes:
        opened: When it was first found to serve it, by the clock of the loop.
        record_id: Newest record when it was last found to agree with the others.
        secs: What the calibration kernel took last, seconds; inf if it failed, None: not yet.
        calibrated: When that was, by the clock of the loop.
        is_thorough: Whether it was then timed as often as it takes to keep a device apart.
        is_calibrating: Whether it is timed, or waits for its turn to be.
        apart: Why it is kept apart; empty if it is not.
        was_admitted: Whether it ever got rounds.
        is_admitted: Whether it gets rounds now.
    """

    opened: float
    record_id: int
    secs: float | None = None
    calibrated: float = 0.0
    is_thorough: bool = False
    is_calibrating: bool = False
    apart: str = ""
    was_admitted: bool = False
    is_admitted: bool = False


@dataclass
class Device:
    """A runner, and the rounds that it was given.

    Attributes:
        runner: Times on it.
        turn: Held by who measures.
        n_rounds: In flight: measured, or prepared to be.
        apart: Why it gets no rounds at all; empty if it may have some.
        free_since: When its last round ended, by the clock of the loop.
        n_losses: How often it went away since a round of its own ended.
        standings: Among the devices of each target that it serves, by the target's spec.
        is_barred: Whether it has a standing for everything that is tuned, and gets no rounds.
    """

    runner: Runner
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    n_rounds: int = 0
    apart: str = ""
    free_since: float = 0.0
    n_losses: int = 0
    standings: dict[str, CalibrationState] = field(default_factory=dict)
    is_barred: bool = False
    _answers: dict[str, TargetInfo | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the device."""
        return self.runner.name

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """What it said of itself when it was first asked of a target that it serves."""
        known = [each for each in self._answers.values() if each is not None]
        return next((each.device for each in known if not each.problem), {})

    @property
    def most_rounds(self) -> int:
        """Rounds that it may have in flight."""
        return 1 if self.runner.shares_cores else 1 + _ROUNDS_AHEAD

    def serves(self, target: TargetInfo) -> bool | None:
        """Whether kernels of a target are measured here; None if it was not asked yet."""
        if target.spec not in self._answers:
            return None
        answer = self._answers[target.spec]
        return answer is not None and not answer.problem and is_same(answer.device, target.device)

    async def ask(self, target: TargetInfo) -> None:
        """Ask what the device makes of a target; one that cannot say does not serve it."""
        try:
            answer = await self.runner.describe(target.spec)
            if not result_validation.is_valid_description(answer):
                raise WorkError(f"{self.name} says {answer!r:.200} of itself")
            self._answers[target.spec] = answer
        except RequestError:
            self._answers[target.spec] = None
        except (CallTimeout, WorkError):
            self._answers.pop(target.spec, None)
            raise

    def set_aside(self, reason: str) -> None:
        """Take no rounds for a while: longer each time, until a round ends well."""
        if self.apart:
            return
        self.apart = reason or "it did not answer"
        secs = min(_RETRY_SECS * 2.0 ** min(self.n_losses, 10), _MOST_RETRY_SECS)
        self.n_losses += 1
        asyncio.get_running_loop().call_later(secs, self.come_back)

    def come_back(self) -> None:
        """Take rounds again; what it serves is asked anew."""
        self.apart = ""
        self.is_barred = False
        self._answers.clear()

    @asynccontextmanager
    async def alone(self, quiet: CpuGate, spec: str = "") -> AsyncIterator[None]:
        """Measure here inside: nobody else does, and builders rest if they would disturb.

        Args:
            quiet: Of the builders.
            spec: The target that is measured for; without one, whatever is found is no record.

        Raises:
            DeviceLost: If the device went away while somebody else had his turn.
            DeviceApart: If it turned out meanwhile that the device disagrees with the others.
        """
        async with self.turn, self._there():
            if spec in self.standings and self.standings[spec].apart:
                raise DeviceApart(self.standings[spec].apart)
            if not self.runner.shares_cores:
                yield
                return
            async with quiet.measuring():
                yield

    @asynccontextmanager
    async def _there(self) -> AsyncIterator[None]:
        """Set the device aside if it goes away inside; whoever comes then is told at once."""
        if self.apart:
            raise DeviceLost(self.apart)
        try:
            yield
        except DeviceApart:
            raise
        except DeviceLost as error:
            self.set_aside(str(error))
            raise


def is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two fingerprints are of equal devices."""
    return dict(one) == dict(other)
