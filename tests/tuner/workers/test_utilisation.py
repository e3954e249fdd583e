"""How busy a device is."""

import pytest

from tuner.workers.utilisation import Meter


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock."""
    return Clock()


def test_calls_side_by_side_count_once(clock: Clock) -> None:
    """Two calls of ten seconds that overlap by five make fifteen."""
    meter = Meter(60.0, clock)
    meter.begin()
    clock.now += 5.0
    meter.begin()
    clock.now += 5.0
    meter.end()
    clock.now += 5.0
    meter.end()
    clock.now += 15.0

    assert meter.busy_secs == 15.0
    assert meter.share() == 0.5


def test_only_the_last_minute_counts(clock: Clock) -> None:
    """What is long ago is forgotten, what goes on counts so far."""
    meter = Meter(60.0, clock)
    meter.begin()
    clock.now += 50.0
    meter.end()
    clock.now += 40.0
    meter.begin()
    clock.now += 10.0

    assert meter.busy_secs == 60.0
    assert meter.share() == pytest.approx((10.0 + 10.0) / 60.0)
    clock.now += 1000.0
    assert meter.share() == 1.0


def test_nothing_yet(clock: Clock) -> None:
    """A device that was just found has done nothing."""
    assert Meter(60.0, clock).share() == 0.0
