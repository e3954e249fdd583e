"""A coordinator's view of its devices: what each is given, and whom it serves."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tuner.engines.base import TargetInfo
from tuner.errors import DeviceLost, RequestError, WorkError
from tuner.executors.base import CallTimeout
from tuner.quiet import Quiet
from tuner.runners.base import Runner

# Searched and built while the round before is measured, on devices that builders do not disturb.
_ROUNDS_AHEAD = 1
# A device that was lost but is still there is tried again then, and later if it is lost again.
_RETRY_SECS = 5.0
_MOST_RETRY_SECS = 300.0


@dataclass
class Device:
    """A runner, and the rounds that it was given.

    Attributes:
        runner: Times on it.
        turn: Held by who measures.
        n_rounds: In flight: measured, or prepared to be.
        apart: Why it gets no rounds; empty if it may have some.
        free_since: When its last round ended, by the clock of the loop.
        n_losses: How often it went away since a round of its own ended.
    """

    runner: Runner
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    n_rounds: int = 0
    apart: str = ""
    free_since: float = 0.0
    n_losses: int = 0
    _answers: dict[str, TargetInfo | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the device."""
        return self.runner.name

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
            if not isinstance(answer, TargetInfo):
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
        self._answers.clear()

    @asynccontextmanager
    async def alone(self, quiet: Quiet) -> AsyncIterator[None]:
        """Measure here inside: nobody else does, and builders rest if they would disturb.

        Raises:
            DeviceLost: If the device went away while somebody else had his turn.
        """
        async with self.turn, self._there():
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
        except DeviceLost as error:
            self.set_aside(str(error))
            raise


def is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two fingerprints are of equal devices."""
    return dict(one) == dict(other)
