"""Division of a report's time among its steps by weight; unused time goes to the next step."""

import time
from collections.abc import Callable, Sequence

# Minimum useful time of a step.
MIN_SECS = 5.0


class Timer:
    """Countdown that starts at its creation.

    Args:
        secs: Length of the countdown in seconds.
        clock: Function that returns seconds and never decreases.
    """

    def __init__(self, secs: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self.secs = secs

    @property
    def spent(self) -> float:
        """Seconds since its creation."""
        return self._clock() - self._started

    @property
    def left(self) -> float:
        """Seconds until its end; 0 afterwards."""
        return max(self.secs - self.spent, 0.0)

    def part(self, share: float) -> "Timer":
        """Return a timer for a share of the remaining time."""
        return Timer(self.left * share, self._clock)


def allot(left_secs: float, weights: Sequence[float]) -> float:
    """Return the share of the remaining time for the first of several steps.

    Args:
        left_secs: Seconds until the end of the report.
        weights: Weights of the remaining steps in order, each above 0.
    """
    return left_secs * weights[0] / sum(weights)


def plan(secs: float, weights: Sequence[float]) -> list[float]:
    """Return the seconds of each step if every step uses its whole share."""
    return [secs * weight / sum(weights) for weight in weights]
