"""The time of the clock kernel is steadier than its readings, and follows steps at once."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tuner.engines.clock_readings import ClockReadings


class Seconds:
    """A clock that a reading moves on by as much as the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    """Clock of the module under test."""
    clock = Seconds()
    monkeypatch.setattr("tuner.engines.clock_readings.time.monotonic", clock.monotonic)
    return clock


def taker(seconds: Seconds, readings: Iterator[float | None]) -> Callable[[], float | None]:
    """Return a function that takes the next reading, which lasts 10 ms."""

    def take() -> float | None:
        seconds.now += 0.01
        return next(readings)

    return take


def scattered(around: float, seed: int) -> Iterator[float]:
    """Return readings with the scatter that an undisturbed machine showed."""
    rng = np.random.default_rng(seed)
    while True:
        yield around * float(rng.normal(1.0, 0.025))


def test_scatter_of_readings_is_averaged_out(seconds: Seconds) -> None:
    """Readings that scatter by 2.5 % give times that scatter by a third of that."""
    clock = ClockReadings()
    take = taker(seconds, scattered(2e-4, 0))

    times = np.array([clock.read(take) for _ in range(200)])

    assert times.std() / 2e-4 < 0.011
    assert abs(times.mean() / 2e-4 - 1.0) < 0.005


def test_a_step_is_followed_at_once(seconds: Seconds) -> None:
    """A device that halves its speed is not compared with the readings before."""
    clock = ClockReadings()
    fast, slow = (taker(seconds, scattered(around, 1)) for around in (2e-4, 4e-4))
    for _ in range(20):
        clock.read(fast)

    assert clock.read(slow) == pytest.approx(4e-4, rel=0.1)


def test_readings_before_a_pause_do_not_count(seconds: Seconds) -> None:
    """A device that rested is warmed up, and read again."""
    clock = ClockReadings()
    assert clock.read(taker(seconds, scattered(2e-4, 2))) == pytest.approx(2e-4, rel=0.03)
    seconds.now += 60.0

    assert clock.read(taker(seconds, iter([*[2.1e-4] * 30]))) == 2.1e-4


def test_disturbed_readings_do_not_count(seconds: Seconds) -> None:
    """The readings before stand in; without any, the time is unknown."""
    clock = ClockReadings()
    never = taker(seconds, iter([None] * 100))

    assert clock.read(never) is None
    assert clock.read(taker(seconds, iter([2e-4] * 30))) == 2e-4
    assert clock.read(never) == 2e-4


def test_old_readings_do_not_stand_in_for_ever(seconds: Seconds) -> None:
    """A device that stays disturbed has no known time."""
    clock = ClockReadings()
    assert clock.read(taker(seconds, iter([2e-4] * 30))) == 2e-4

    never = taker(seconds, iter([None] * 100))
    for _ in range(3):
        seconds.now += 4.0
        last = clock.read(never)

    assert last is None
