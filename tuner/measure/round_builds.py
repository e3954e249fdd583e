"""Builds of one round, which have a share of the builders, and their artifacts."""

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from tuner.engines.base import BuildRequest, Candidate, RunResult
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.worker_calls import BUILDING, result_of
from tuner.workers import result_validation

# Builds under way for each builder, so that it has another one when one ends.
_BUILDS_PER_BUILDER = 2


class CandidateBuilder:
    """Builder of candidates for one target; the artifacts belong to the caller."""

    def __init__(self, setup: MeasureSetup) -> None:
        self._setup = setup
        self._executor = setup.context.executor

    async def build(self, task: TaskUnderTest, trace: str) -> str | RunResult:
        """Build a trace.

        Returns:
            Name of the artifact, or the error.

        Raises:
            DiskFull: If the disk is full.
        """
        request = BuildRequest(task.ir, self._setup.target, trace)
        timeout = self._setup.build_timeout_secs
        return await result_of(
            BUILDING,
            lambda: self._executor.build(request, timeout_secs=timeout),
            result_validation.validate_build,
            timeout,
            self._setup.context.data_dir,
        )

    async def build_all(self, task: TaskUnderTest, traces: Sequence[str]) -> list[str | RunResult]:
        """Build traces side by side, while no CPU is timed.

        Returns:
            For each trace the name of its artifact, or its error.

        Raises:
            DiskFull: If the disk is full.
        """
        async with self._setup.context.cpu_gate.shared():
            builds = [asyncio.ensure_future(self.build(task, trace)) for trace in traces]
            try:
                return await asyncio.gather(*builds)
            except BaseException:
                # The caller gets no names, and cannot remove what the others have built.
                built = await asyncio.gather(*builds, return_exceptions=True)
                self.discard(each for each in built if isinstance(each, str))
                raise

    def discard(self, artifacts: Iterable[str]) -> None:
        """Remove artifacts; ignore artifacts that are gone."""
        for artifact in artifacts:
            self._executor.discard(artifact)


class Built(NamedTuple):
    """A candidate with the name of its artifact, or its error.

    Attributes:
        number: Position of the candidate in its round.
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
