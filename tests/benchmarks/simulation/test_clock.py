"""Virtual time advances with work and skips waits."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from benchmarks.simulation.clock import Agenda, VirtualClock, VirtualLoop

HOUR = 3600.0


class Cpu:
    """CPU time that a test sets."""

    secs = 0.0

    def __call__(self) -> float:
        """Return seconds of work."""
        return self.secs


def run(clock: VirtualClock, main: Callable[[], Awaitable[None]], agenda: Agenda) -> None:
    """Run a coroutine in virtual time."""

    async def wrapped() -> None:
        await main()

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock, agenda)) as runner:
        runner.run(wrapped())


def test_waits_are_skipped_and_work_is_counted() -> None:
    """The time is the sum of sleeps and work."""
    cpu = Cpu()
    clock = VirtualClock(cpu)
    seen = []

    async def main() -> None:
        await asyncio.sleep(HOUR)
        cpu.secs += 5.0
        seen.append(asyncio.get_running_loop().time())
        await asyncio.sleep(HOUR)

    run(clock, main, Agenda())

    assert seen == [pytest.approx(HOUR + 5.0)]
    assert clock.now() == pytest.approx(2 * HOUR + 5.0)
    assert clock.worked_secs == pytest.approx(5.0)


def test_a_busy_coordinator_is_late() -> None:
    """Events that become due during its work are handled afterwards."""
    cpu = Cpu()
    clock = VirtualClock(cpu)
    seen: list[float] = []

    async def main() -> None:
        asyncio.get_running_loop().call_later(1.0, lambda: seen.append(clock.now()))
        await asyncio.sleep(0.0)
        cpu.secs += 3.0
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)

    run(clock, main, Agenda())

    assert seen == [pytest.approx(3.0)]


def test_a_stopped_clock_does_not_count_work() -> None:
    """The same holds for nested stops; the clock continues where it stopped."""
    cpu = Cpu()
    clock = VirtualClock(cpu)

    with clock.stopped(), clock.stopped():
        cpu.secs += 7.0
        clock.charge(2.0)
        assert clock.now() == 2.0
    cpu.secs += 1.0

    assert clock.now() == clock.worked_secs == 3.0


def test_the_agenda_wakes_those_who_wait_in_the_order_of_time() -> None:
    """Events of the same time run in the order of their addition."""
    clock, agenda = VirtualClock(Cpu()), Agenda()
    seen: list[tuple[str, float]] = []

    async def main() -> None:
        ended = asyncio.get_running_loop().create_future()
        agenda.add(9.0, lambda: ended.set_result(None))
        for name, at in (("late", 2.0), ("early", 1.0), ("second", 1.0)):
            agenda.add(at, lambda name=name: seen.append((name, clock.now())))  # type: ignore[misc]
        await ended

    run(clock, main, agenda)

    assert seen == [("early", 1.0), ("second", 1.0), ("late", 2.0)]
    assert clock.now() == 9.0


def test_work_for_threads_runs_in_this_thread() -> None:
    """A function that the coordinator hands to a thread costs time."""
    cpu = Cpu()
    clock = VirtualClock(cpu)

    def work() -> str:
        cpu.secs += 4.0
        return "done"

    async def main() -> None:
        assert await asyncio.to_thread(work) == "done"

    run(clock, main, Agenda())

    assert clock.now() == 4.0
