"""Tests that rounds share the builders, and leave no artifact behind."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tuner.engines.base import BuildRequest, BuildResult, Candidate, EvaluatorSettings, RunResult
from tuner.measure.context import MeasureContext, MeasureSetup, TaskUnderTest
from tuner.measure.round_builds import RoundBuilds
from tuner.tuning import event_loop

CANDIDATES = [Candidate(f"trace {number}", f"module {number}", b"", 0.0) for number in range(6)]
OTHERS = [Candidate(f"other {number}", f"other {number}", b"", 0.0) for number in range(6)]
TASK = TaskUnderTest(1, "work", b"ir")


class Builders:
    """Two builders, whose builds end when a test says so."""

    n_builders = 2

    def __init__(self) -> None:
        self.builds: dict[str, asyncio.Future[Any]] = {}
        self.discarded: list[str] = []

    def build(self, request: BuildRequest, *, timeout_secs: float) -> "asyncio.Future[Any]":  # noqa: ARG002
        """Begin a build; the traces of a round differ."""
        future = self.builds[request.trace] = asyncio.get_running_loop().create_future()
        return future

    def discard(self, artifact: str) -> None:
        """Note the artifact."""
        self.discarded.append(artifact)

    async def end(self, number: int, outcome: BuildResult | Exception) -> None:
        """End the build of a candidate, and let its round react."""
        future = self.builds[CANDIDATES[number].trace]
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        await settle()


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def builders() -> Builders:
    """Two builders without work."""
    return Builders()


@pytest.fixture
def setup(builders: Builders, tmp_path: Path) -> MeasureSetup:
    """Settings of measurements with these builders."""
    context = MeasureContext(builders, tmp_path)  # type: ignore[arg-type]  # all that is used
    return MeasureSetup(context, "target", EvaluatorSettings(), 1.0)


def test_rounds_share_the_builders(setup: MeasureSetup, builders: Builders) -> None:
    """A round alone has two builds for each builder under way; the next one has its share."""

    async def work() -> tuple[int, int]:
        first = RoundBuilds(setup, TASK, CANDIDATES)
        await settle()
        n_alone = len(builders.builds)
        second = RoundBuilds(setup, TASK, OTHERS)
        await settle()
        first.close()
        second.close()
        return n_alone, len(builders.builds) - n_alone

    assert event_loop.run(work()) == (4, 2)


def test_a_round_has_the_share_of_those_that_ended(setup: MeasureSetup, builders: Builders) -> None:
    """A round that begins beside another one builds more when that one only times."""

    async def work() -> int:
        other = RoundBuilds(setup, TASK, OTHERS)
        builds = RoundBuilds(setup, TASK, CANDIDATES)
        await settle()
        for candidate in OTHERS:
            builders.builds[candidate.trace].set_result(BuildResult(candidate.trace))
            await settle()
        await builders.end(0, BuildResult("first"))
        n_begun = sum(candidate.trace in builders.builds for candidate in CANDIDATES)
        other.close()
        builds.close()
        return n_begun

    assert event_loop.run(work()) == 5


def test_builds_are_returned_as_they_end(setup: MeasureSetup, builders: Builders) -> None:
    """Each candidate comes once, with its artifact or its error, and the next one is begun."""

    async def work() -> list[tuple[int, str | RunResult]]:
        builds = RoundBuilds(setup, TASK, CANDIDATES)
        await settle()
        for number in (3, 0, 4, 1, 5, 2):
            failure = "it does not compile" if number == 1 else ""
            await builders.end(number, BuildResult(str(number), failure))
        assert not setup.context.rounds_building
        return [(number, outcome) async for number, _, outcome in builds]

    built = event_loop.run(work())

    assert [number for number, _ in built] == [3, 0, 4, 1, 5, 2]
    assert dict(built)[4] == "4"
    assert isinstance(dict(built)[1], RunResult)


def test_no_artifact_is_left(setup: MeasureSetup, builders: Builders) -> None:
    """Closing discards artifacts, also those of builds that end later, and begins no other."""

    async def work() -> None:
        builds = RoundBuilds(setup, TASK, CANDIDATES)
        await settle()
        await builders.end(0, BuildResult("first"))
        await builders.end(1, BuildResult("second"))
        assert (await anext(builds)).outcome == "first"
        builds.discard("first")
        builds.close()
        n_begun = len(builders.builds)
        await builders.end(2, BuildResult("third"))
        assert len(builders.builds) == n_begun

    event_loop.run(work())

    assert builders.discarded == ["first", "second", "third"]
    assert not setup.context.rounds_building


def test_an_error_ends_the_round(setup: MeasureSetup, builders: Builders) -> None:
    """An error that is not the candidate's is raised to the round."""

    async def work() -> None:
        builds = RoundBuilds(setup, TASK, CANDIDATES)
        await settle()
        n_begun = len(builders.builds)
        await builders.end(0, RuntimeError("a defect"))
        assert len(builders.builds) == n_begun
        await anext(builds)

    with pytest.raises(RuntimeError, match="a defect"):
        event_loop.run(work())


def test_a_round_that_closes_at_the_gate_builds_nothing(
    setup: MeasureSetup, builders: Builders
) -> None:
    """Builds that wait while a CPU is timed are dropped with their round."""

    async def work() -> None:
        async with setup.context.cpu_gate.exclusive():
            builds = RoundBuilds(setup, TASK, CANDIDATES)
            await settle()
            builds.close()
        await settle()

    event_loop.run(work())

    assert not builders.builds
