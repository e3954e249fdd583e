"""Readings of the clock kernel tell a core that is shared from a device that is slow."""

from itertools import chain, cycle, repeat
from typing import TYPE_CHECKING

import pytest

from tuner.devices.cpu_contention import Reading
from tuner.engines.runtime.clock_readings import MAX_SLOWDOWN, ClockReadings

if TYPE_CHECKING:
    from collections.abc import Iterator


class Machine:
    """A machine on which every run of the kernel takes the next of some times."""

    def __init__(self) -> None:
        self.now = 0.0
        self.secs: Iterator[float] = repeat(1e-4)
        self.waits: Iterator[float] = repeat(0.0)
        self.waited_secs = 0.0

    def perf_counter(self) -> float:
        """Return the time."""
        return self.now

    def run(self) -> None:
        """Run the kernel, whose threads wait for a core in addition."""
        waits = next(self.waits)
        self.now += next(self.secs) + waits
        self.waited_secs += waits

    def counters(self) -> Reading:
        """Return the counters of the machine."""
        return Reading(self.waited_secs, 0, 0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Machine that the module under test runs on."""
    machine = Machine()
    monkeypatch.setattr(
        "tuner.engines.runtime.clock_readings.time.perf_counter", machine.perf_counter
    )
    monkeypatch.setattr(
        "tuner.engines.runtime.clock_readings.cpu_contention.read", machine.counters
    )
    return machine


def is_slow(clock: ClockReadings, secs: float | None) -> bool:
    """Return whether a reading shows a core that is shared."""
    assert secs is not None
    return secs > MAX_SLOWDOWN * clock.undisturbed_secs


def test_a_core_that_is_shared_is_slow(machine: Machine) -> None:
    """Readings are compared with the fast ones of the last seconds."""
    clock = ClockReadings(machine.run)
    for _ in range(10):
        clock.read()
    machine.secs = iter([1.1e-4, 2e-4])

    assert not is_slow(clock, clock.read())
    assert is_slow(clock, clock.read())


def test_one_lucky_reading_is_no_measure(machine: Machine) -> None:
    """A moment at another frequency does not make all later samples disturbed."""
    clock = ClockReadings(machine.run)
    machine.secs = chain(repeat(1e-4, 2100), [0.7e-4], repeat(1e-4))

    readings = [clock.read() for _ in range(150)]

    assert min(filter(None, readings)) == pytest.approx(0.7e-4)
    assert clock.undisturbed_secs == pytest.approx(1e-4)


def test_a_speed_that_lasts_is_that_of_the_device(machine: Machine) -> None:
    """Later, a throttled device is slow no more."""
    clock = ClockReadings(machine.run)
    for _ in range(100):
        clock.read()
    machine.secs = repeat(2e-4)
    assert is_slow(clock, clock.read())
    for _ in range(40):
        machine.now += 0.3
        last = clock.read()

    assert not is_slow(clock, last)


def test_a_device_that_rested_warms_up(machine: Machine) -> None:
    """Its first runs are faster than those at work, and no measure for them."""
    clock = ClockReadings(machine.run)
    for _ in range(2):
        machine.secs = chain(repeat(0.5e-4, 100), repeat(1e-4))
        assert clock.read() == pytest.approx(1e-4)
        assert clock.undisturbed_secs == pytest.approx(1e-4)
        machine.now += 60.0


def test_threads_that_slept_are_woken_before_a_reading(machine: Machine) -> None:
    """Waking them takes longer than the kernel."""
    clock = ClockReadings(machine.run)
    clock.read()
    machine.now += 0.05
    machine.secs = iter([3e-4, 1e-4])

    assert clock.read() == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("period_secs", "expected"),
    [(0.0, 1e-4), (0.1, 1.25e-4)],
    ids=["as short as the kernel", "much longer"],
)
def test_long_work_takes_the_mean_of_slow_and_fast_moments(
    machine: Machine, period_secs: float, expected: float
) -> None:
    """Short work mostly runs in fast ones, where a quarter of the time is slow."""
    clock = ClockReadings(machine.run)
    machine.secs = cycle([1e-4, 1e-4, 1e-4, 2e-4])

    assert clock.average(period_secs) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("period_secs", [0.0, 0.1], ids=["short", "long"])
def test_readings_that_wait_for_a_core_do_not_count(machine: Machine, period_secs: float) -> None:
    """Three of four runs take 2.4 times as long, as another process has the core."""
    clock = ClockReadings(machine.run)
    machine.waits = cycle([1.4e-4, 1.4e-4, 1.4e-4, 0.0])

    assert clock.average(period_secs) == pytest.approx(1e-4)
    assert clock.undisturbed_secs == pytest.approx(1e-4)


def test_a_clock_that_lasts_at_another_speed_is_read_as_it_is(machine: Machine) -> None:
    """A turbo of 1.2 and half of the speed are the device's own."""
    for secs in (1e-4 / 1.2, 2e-4):
        machine.secs = repeat(secs)
        assert ClockReadings(machine.run).average(0.01) == pytest.approx(secs)


def test_without_a_free_core_there_is_no_reading(machine: Machine) -> None:
    """The few that succeed before and after count."""
    clock = ClockReadings(machine.run)
    first = clock.read()
    machine.waits = repeat(1.4e-4)

    assert clock.read() is None
    assert clock.average(0.01) is None
    assert clock.undisturbed_secs == first
    machine.waits = repeat(0.0)
    assert clock.read() == pytest.approx(1e-4)
