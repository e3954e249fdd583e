"""A coordinator's view of its devices: what each is given, and whom it serves."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tuner.engines.base import TargetInfo
from tuner.errors import RequestError, WorkError
from tuner.executors.base import CallTimeout
from tuner.quiet import Quiet
from tuner.runners.base import Runner

# Searched and built while the round before is measured, on devices that builders do not disturb.
_ROUNDS_AHEAD = 1


@dataclass
class Device:
    """A runner, and the rounds that it was given.

    Attributes:
        runner: Times on it.
        turn: Held by who measures.
        n_rounds: In flight: measured, or prepared to be.
        apart: Why it gets no rounds; empty if it may have some.
        free_since: When its last round ended, by the clock of the loop.
    """

    runner: Runner
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    n_rounds: int = 0
    apart: str = ""
    free_since: float = 0.0
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
            self._answers[target.spec] = await self.runner.describe(target.spec)
        except RequestError:
            self._answers[target.spec] = None
        except (CallTimeout, WorkError):
            self._answers.pop(target.spec, None)
            raise

    def come_back(self) -> None:
        """Take rounds again; what it serves is asked anew."""
        self.apart = ""
        self._answers.clear()

    @asynccontextmanager
    async def alone(self, quiet: Quiet) -> AsyncIterator[None]:
        """Measure here inside: nobody else does, and builders rest if they would disturb."""
        async with self.turn:
            if not self.runner.shares_cores:
                yield
                return
            async with quiet.measuring():
                yield


def is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two fingerprints are of equal devices."""
    return dict(one) == dict(other)
