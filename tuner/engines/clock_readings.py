"""Time of a clock kernel now, from its last readings.

One reading of an undisturbed device varies by some 3 %, as much as the drift that it is to show;
the median of the readings of the last seconds varies by less than 1 %.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

# Readings that count: as many as candidates that are timed in some three seconds.
_N_READINGS = 15
# Readings come before the first that counts: a device that rested is faster than one at work.
_WARM_UP_SECS = 0.2
# Readings further apart than the largest pause show another state of the device, and so do
# readings that differ by more than the largest step.
_MAX_PAUSE_SECS = 10.0
_MAX_STEP = 0.1


@dataclass
class ClockReadings:
    """The last readings of a clock kernel in this process, latest last."""

    _readings: deque[float] = field(default_factory=lambda: deque(maxlen=_N_READINGS))
    _read_at: float = -float("inf")

    def read(self, take: Callable[[], float | None]) -> float | None:
        """Return the time of the clock kernel now, seconds; None if no reading succeeds.

        It is the median of the last readings that are within 10 % of the latest one. After a
        pause, readings are taken for 0.2 s first.

        Args:
            take: Reads the kernel once, seconds; None for a reading that was disturbed.
        """
        started = time.monotonic()
        if started - self._read_at > _MAX_PAUSE_SECS:
            self._readings.clear()
            while time.monotonic() < started + _WARM_UP_SECS:
                self._add(take())
        self._add(take())
        if not self._readings:
            return None
        latest = self._readings[-1]
        return median(one for one in self._readings if abs(one / latest - 1.0) <= _MAX_STEP)

    def _add(self, secs: float | None) -> None:
        if secs is not None:
            self._readings.append(secs)
            self._read_at = time.monotonic()
