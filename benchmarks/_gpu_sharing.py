"""The time of a report, shared among its steps by weight; what a step leaves goes to the next."""

import time
from collections.abc import Callable, Sequence

# With less than this no step gets anywhere.
LEAST_SECS = 5.0


class Timer:
    """Counts down from when it is made.

    Args:
        secs: How long.
        clock: Seconds, never going back.
    """

    def __init__(self, secs: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self.secs = secs

    @property
    def spent(self) -> float:
        """Seconds since it was made."""
        return self._clock() - self._started

    @property
    def left(self) -> float:
        """Seconds until it is over; 0 from then on."""
        return max(self.secs - self.spent, 0.0)

    def part(self, share: float) -> "Timer":
        """Return a timer over a share of what is left."""
        return Timer(self.left * share, self._clock)


def allot(left_secs: float, weights: Sequence[float]) -> float:
    """Return what the first of several steps may take of the time that is left.

    Args:
        left_secs: Until the report has to be done.
        weights: Of the steps that are left, the first one first; each above 0.
    """
    return left_secs * weights[0] / sum(weights)


def plan(secs: float, weights: Sequence[float]) -> list[float]:
    """Return what each step gets if every one takes all that it may, seconds."""
    return [secs * weight / sum(weights) for weight in weights]
