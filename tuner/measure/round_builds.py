"""Builds of one round, which have a share of the builders, and their artifacts."""

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Self

from tuner.engines.base import Candidate, RunResult
from tuner.measure.candidate_builder import CandidateBuilder
from tuner.measure.context import MeasureSetup, TaskUnderTest

# Builds under way for each builder, so that it has another one when one ends.
_BUILDS_PER_BUILDER = 2


class Built(NamedTuple):
    """A candidate with the name of its artifact, or its error.

    Attributes:
        number: Position of the candidate in its round.
        candidate: The candidate.
        outcome: Name of the artifact, or the error.
    """

    number: int
    candidate: Candidate
    outcome: str | RunResult


class RoundBuilds:
    """Builds of the candidates of one round, in the order in which they end.

    The rounds that build share the builders: with many rounds, each has few builds under way, so
    that none waits until all of an earlier one are built, and more when others have ended. Builds
    under way go on whatever becomes of the round, as their workers do.

    Args:
        setup: Target and settings.
        task: Task of the candidates.
        candidates: Candidates to build; building starts at once.
    """

    def __init__(
        self, setup: MeasureSetup, task: TaskUnderTest, candidates: Sequence[Candidate]
    ) -> None:
        self._context = setup.context
        self._builder = CandidateBuilder(setup)
        self._task = task
        self._waiting = deque(enumerate(candidates))
        self._n_untaken = len(candidates)
        self._ended: asyncio.Queue[Built | Exception] = asyncio.Queue()
        self._artifacts: set[str] = set()
        self._is_closed = False
        self._context.rounds_building.add(self)
        self._lanes: set[asyncio.Future[None]] = set()
        self._add_lanes()

    def __aiter__(self) -> Self:
        """Return itself; several loops over it share the builds."""
        return self

    async def __anext__(self) -> Built:
        """Return the next candidate whose build ends; see :meth:`discard`.

        Raises:
            DiskFull: If the disk is full.
        """
        if not self._n_untaken:
            raise StopAsyncIteration
        self._n_untaken -= 1
        built = await self._ended.get()
        if isinstance(built, Exception):
            raise built
        return built

    def discard(self, artifact: str) -> None:
        """Discard an artifact that is not needed any more."""
        self._artifacts.discard(artifact)
        self._builder.discard([artifact])

    def close(self) -> None:
        """Start no further build, and discard all artifacts."""
        self._is_closed = True
        self._end_building()
        while self._artifacts:
            self._builder.discard([self._artifacts.pop()])

    def _add_lanes(self) -> None:
        """Have as many builds under way as the round's share of the builders."""
        builds = _BUILDS_PER_BUILDER * self._context.executor.n_builders
        share = math.ceil(builds / len(self._context.rounds_building))
        for _ in range(min(share - len(self._lanes), len(self._waiting))):
            lane = asyncio.ensure_future(self._run_lane())
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)

    async def _run_lane(self) -> None:
        """Build candidates that no other lane has taken, one after the other."""
        while self._waiting:
            async with self._context.cpu_gate.shared():
                if self._waiting:
                    await self._build(*self._waiting.popleft())
            if self._waiting:
                self._add_lanes()
        self._end_building()

    async def _build(self, number: int, candidate: Candidate) -> None:
        try:
            outcome = await self._builder.build(self._task, candidate.trace)
        except Exception as error:
            # The disk is full, for example, which the other builds would find as well.
            self._end_building()
            self._ended.put_nowait(error)
            return
        self._ended.put_nowait(Built(number, candidate, outcome))
        if not isinstance(outcome, str):
            return
        if self._is_closed:
            self._builder.discard([outcome])
        else:
            self._artifacts.add(outcome)

    def _end_building(self) -> None:
        self._waiting.clear()
        self._context.rounds_building.discard(self)
