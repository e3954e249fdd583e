"""Readings of the clock kernel in this process: how fast the cores are, moment by moment.

On a shared host the second hardware thread of a core may belong to another virtual machine. While
that one computes, the core runs at half of its speed, for a fraction of a millisecond or for
minutes, and nothing that Linux counts shows it. The clock kernel does: it is read before and after
every sample.
"""

import heapq
import math
import time
from collections import deque
from collections.abc import Callable
from statistics import fmean, median

from tuner.devices import cpu_contention

# Readings for this long come before those that count: a device that rested is faster than one at
# work.
_WARM_UP_SECS = 0.2
_MAX_PAUSE_SECS = 2.0
# Threads that had nothing to do for this long sleep: the reading after one that wakes them counts.
_MAX_IDLE_SECS = 1e-3
#: A reading that takes longer than the undisturbed clock by more than this factor shows a core that
#: is shared.
MAX_SLOWDOWN = 1.15
# The undisturbed clock is the fourth fastest reading of the last seconds: single ones may be of
# moments at another frequency. A speed that lasts longer is that of the device.
_RANK = 4
_MEMORY_SECS = 10.0
_MAX_READINGS = 4096
# Attempts at a reading without a thread that waits for a core.
_ATTEMPTS = 4
# Periods over which readings are averaged, at least, and their least time together; readings that
# may fail for each that does not, and at first.
_MIN_PERIODS = 3
_MIN_SECS = 0.02
_MAX_FAILED, _MAX_FAILED_AT_FIRST = 4, 32


class ClockReadings:
    """Readings of a clock kernel, and the speed that the cores have undisturbed.

    Args:
        run: Runs the kernel once.
    """

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self._read_at = -math.inf
        self._readings: deque[tuple[float, float]] = deque(maxlen=_MAX_READINGS)

    def read(self) -> float | None:
        """Run the kernel once and return its time, seconds; after a pause it warms up first.

        A run whose threads wait for a core says how long they wait, and not how fast the cores are:
        it does not count, and another follows. Returns None if all attempts wait.
        """
        self._wake()
        for _ in range(_ATTEMPTS):
            before = cpu_contention.read()
            started = time.perf_counter()
            self._run()
            self._read_at = time.perf_counter()
            secs = self._read_at - started
            if not before.is_disturbed_until(cpu_contention.read(), secs):
                self._readings.append((self._read_at, secs))
                while self._readings[0][0] < self._read_at - _MEMORY_SECS:
                    self._readings.popleft()
                return secs
        return None

    def _wake(self) -> None:
        """Run the kernel without reading it, once or after a pause for a while."""
        started = time.perf_counter()
        idle_secs = started - self._read_at
        if idle_secs > _MAX_IDLE_SECS:
            self._run()
        if idle_secs > _MAX_PAUSE_SECS:
            self._readings.clear()
            while time.perf_counter() < started + _WARM_UP_SECS:
                self._run()

    @property
    def undisturbed_secs(self) -> float:
        """Time of the kernel on undisturbed cores, seconds; infinite before the first reading."""
        fastest = heapq.nsmallest(_RANK, (secs for _, secs in self._readings))
        return fastest[-1] if fastest else math.inf

    def average(self, period_secs: float) -> float | None:
        """Return the time of the kernel as work of some length sees it, seconds.

        Long work takes the mean of slow and fast moments, short work mostly runs in one of them:
        readings are averaged over periods as long as the work, and the median period counts.
        Returns None if threads wait for a core nearly all the time.
        """
        means: list[float] = []
        ends = time.perf_counter() + _MIN_SECS
        n_left = _MAX_FAILED_AT_FIRST
        while len(means) < _MIN_PERIODS or time.perf_counter() < ends:
            readings: list[float] = []
            while not readings or sum(readings) < period_secs:
                secs = self.read()
                if secs is not None:
                    readings.append(secs)
                n_left += -1 if secs is None else _MAX_FAILED
                if not n_left:
                    return None
            means.append(fmean(readings))
        return median(means)
