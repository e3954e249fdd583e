"""Races of a final are built as builders are free, end before an error, and fit by their cost."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from records.models import MeasureRecord
from tuner.engines.base import RunResult
from tuner.errors import DiskFull
from tuner.measure.context import TaskUnderTest
from tuner.tuning import event_loop
from tuner.tuning.rounds.finals import Deadline, Final, Race

N_RIVALS = 8


@dataclass
class Machine:
    """Machine on which time passes as builds and turns end.

    Attributes:
        n_builders: Builders of its executor.
        secs: Time that has passed.
        wait_secs: Time for which others have the device before each heat.
        n_building: Races that are being built.
        max_building: Largest number of them.
        events: Number of the race and what happened to it, in order.
    """

    n_builders: int = 1
    secs: float = 0.0
    wait_secs: float = 0.0
    n_building: int = 0
    max_building: int = 0
    events: list[tuple[int, str]] = field(default_factory=list)

    def of(self, event: str) -> list[int]:
        """Return the races to which something happened."""
        return [number for number, happened in self.events if happened == event]


@dataclass
class Timing:
    """Builds and turns of one race.

    Attributes:
        machine: Machine that does them.
        number: Number of the race.
        turn_secs: Duration of a turn.
        n_steps: Steps of the event loop that its builds take.
        error: Error of its builds.
    """

    machine: Machine
    number: int
    turn_secs: float = 0.01
    n_steps: int = 3
    error: Exception | None = None

    @property
    def n_builders(self) -> int:
        """Builders of the machine."""
        return self.machine.n_builders

    async def build(self) -> None:
        """Build for a tenth of a second."""
        machine = self.machine
        machine.events.append((self.number, "begin"))
        machine.n_building += 1
        machine.max_building = max(machine.max_building, machine.n_building)
        for _ in range(self.n_steps):
            await asyncio.sleep(0)
        machine.n_building -= 1
        if self.error is not None:
            raise self.error
        machine.secs += 0.1
        machine.events.append((self.number, "built"))

    async def time(
        self, indices: Sequence[int], _device: Any, *, n_turns: int, on_begin: Callable[[], None]
    ) -> list[RunResult]:
        """Time rivals in turns, once the device is free."""
        self.machine.secs += self.machine.wait_secs
        on_begin()
        self.machine.secs += self.turn_secs * len(indices) * n_turns
        self.machine.events.append((self.number, "heat"))
        return [RunResult((self.turn_secs,) * n_turns) for _ in indices]

    def close(self) -> None:
        """Note that it was closed."""
        self.machine.events.append((self.number, "close"))


def run(machine: Machine, timings: Sequence[Timing], secs: float) -> None:
    """Run the races of a final, whose latencies are a fifth of their turns."""

    def race(timing: Timing) -> Race:
        latency = timing.turn_secs / 5
        rivals = [MeasureRecord(id=number, latency=latency) for number in range(N_RIVALS)]
        task = TaskUnderTest(timing.number, "work", b"")
        positions = list(range(N_RIVALS))
        return Race(task, rivals, timing, positions, [[] for _ in rivals])  # type: ignore[arg-type]

    races = [race(timing) for timing in timings]
    deadline = Deadline(lambda: machine.secs, secs)
    final = Final(races, None, deadline, lambda _race: None)  # type: ignore[arg-type]
    event_loop.run(final.run())


@pytest.mark.parametrize(
    ("n_builders", "expected"), [(0, 1), (1, 1), (2, 2), (8, 2), (16, 2), (24, 3)]
)
def test_races_are_built_as_builders_are_free(n_builders: int, expected: int) -> None:
    """Each race has eight builds, and the next one those that are left."""
    machine = Machine(n_builders)

    run(machine, [Timing(machine, number) for number in range(8)], 1e9)

    assert machine.max_building == expected
    assert len(machine.of("heat")) == 24


def test_many_builders_begin_no_build_too_late() -> None:
    """In the second half of the time none begins."""
    machine = Machine(n_builders=16)

    run(machine, [Timing(machine, number) for number in range(16)], 0.6)

    assert machine.of("begin") == machine.of("built") == [0, 1, 2, 3]


def test_races_are_timed_in_their_order() -> None:
    """Whichever is built first."""
    machine = Machine(n_builders=2)

    run(machine, [Timing(machine, 0, n_steps=9), Timing(machine, 1)], 1e9)

    assert machine.of("built") == [1, 0]
    assert machine.of("heat") == [0, 1] * 3


def test_races_end_their_builds_before_an_error_is_raised() -> None:
    """Their artifacts can be removed then; no other begins."""
    machine = Machine(n_builders=2)
    full = Timing(machine, 0, error=DiskFull("no space left"))

    with pytest.raises(DiskFull):
        run(machine, [full, Timing(machine, 1, n_steps=9), Timing(machine, 2)], 1e9)

    assert machine.of("begin") == [0, 1]
    built = machine.events.index((1, "built"))
    assert machine.events[built + 1 :] == [(0, "close"), (1, "close"), (2, "close")]


def test_the_first_race_has_a_heat_that_is_expected_to_take_too_long() -> None:
    """A final without one would decide nothing, however often it is run."""
    machine = Machine()

    run(machine, [Timing(machine, number, turn_secs=1.0) for number in range(3)], 0.5)

    assert machine.of("heat") == [0]


def test_first_heats_are_expected_to_take_as_long_as_their_latencies_tell() -> None:
    """Slow kernels do not take the time of the others, and fast ones are not left out."""
    slow_second, slow_first = Machine(), Machine()
    # A first heat of the slow kernel takes 4 s, one of a fast kernel 0.16 s.
    run(slow_second, [Timing(slow_second, n, [0.01, 0.25, 0.01][n]) for n in range(3)], 1.5)
    run(slow_first, [Timing(slow_first, n, [0.25, 0.01, 0.01][n]) for n in range(3)], 5.5)

    assert slow_second.of("heat") == [0, 2] * 3
    assert set(slow_first.of("heat")) == {0, 1, 2}


def test_waiting_for_the_device_is_not_a_part_of_a_turn() -> None:
    """A heat that waited long does not make those after it seem to take as long."""
    machine = Machine(wait_secs=1.0)

    run(machine, [Timing(machine, 0)], 2.5)

    assert machine.of("heat") == [0, 0, 0]
