"""Utilisation of a device."""

import pytest

from tuner.workers.utilisation import UtilisationMeter


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that a test sets."""
    return Clock()


def test_calls_side_by_side_count_once(clock: Clock) -> None:
    """Two calls of ten seconds that overlap by five make fifteen."""
    meter = UtilisationMeter(60.0, clock)
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
    """Work before the window is forgotten; a call that still runs counts so far."""
    meter = UtilisationMeter(60.0, clock)
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


def test_new_meter_shows_no_work(clock: Clock) -> None:
    """The share is 0 before any time has passed."""
    assert UtilisationMeter(60.0, clock).share() == 0.0
