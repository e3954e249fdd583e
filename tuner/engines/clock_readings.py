"""Readings of the clock kernel in this process: how fast the cores are, moment by moment.

On a shared host the second hardware thread of a core may belong to another virtual machine. While
that one computes, the core runs at half of its speed, for a fraction of a millisecond or for
minutes, and nothing that Linux counts shows it. The clock kernel does: it is read before and after
every sample.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from statistics import fmean, median

# Readings for this long come before those that count: a device that rested is faster than one at
# work.
_WARM_UP_SECS = 0.2
_MAX_PAUSE_SECS = 10.0
# A reading that takes longer than the fastest of the last seconds by more than this shows a core
# that is shared. A speed that lasts longer is the speed of the device.
_MAX_SLOWDOWN = 1.15
_MEMORY_SECS = 10.0
# Periods over which readings are averaged, at least, and their least time together.
_MIN_PERIODS = 3
_MIN_SECS = 0.02


class ClockReadings:
    """Readings of a clock kernel, and the speed that the cores have undisturbed.

    Args:
        run: Runs the kernel once.
    """

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self._read_at = -math.inf
        # Readings of the last seconds that are faster than all later ones, with their times: the
        # first is the fastest.
        self._fastest: deque[tuple[float, float]] = deque()

    def read(self) -> float:
        """Run the kernel once and return its time, seconds; after a pause it warms up first."""
        started = time.perf_counter()
        if started - self._read_at > _MAX_PAUSE_SECS:
            while time.perf_counter() < started + _WARM_UP_SECS:
                self._run()
            started = time.perf_counter()
        self._run()
        self._read_at = time.perf_counter()
        secs = self._read_at - started
        while self._fastest and self._fastest[-1][1] >= secs:
            self._fastest.pop()
        self._fastest.append((self._read_at, secs))
        while self._fastest[0][0] < self._read_at - _MEMORY_SECS:
            self._fastest.popleft()
        return secs

    @property
    def undisturbed_secs(self) -> float:
        """Fastest reading of the last seconds; infinite before the first."""
        return self._fastest[0][1] if self._fastest else math.inf

    def is_slow(self, secs: float) -> bool:
        """Return whether a reading shows a core that something else slowed down."""
        return secs > _MAX_SLOWDOWN * self.undisturbed_secs

    def average(self, period_secs: float) -> float:
        """Return the time of the kernel as work of some length sees it, seconds.

        Long work takes the mean of slow and fast moments, short work mostly runs in one of them:
        readings are averaged over periods as long as the work, and the median period counts.
        """
        means: list[float] = []
        ends = time.perf_counter() + _MIN_SECS
        while len(means) < _MIN_PERIODS or time.perf_counter() < ends:
            readings = [self.read()]
            while sum(readings) < period_secs:
                readings.append(self.read())
            means.append(fmean(readings))
        return median(means)
