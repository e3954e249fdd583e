"""Limit on the time that a coordinator spends on publishing the status of its jobs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STATUS_INTERVAL_SECS = 0.5
# Seconds without publishing after each second spent on it: a share of 2 % in all.
_REST_RATIO = 50.0


class ProgressThrottle:
    """Decides when the status of a job is published; used by one thread.

    With one device every step of a job is published. With several, a job is published twice a
    second at most, and all jobs together take about 2 % of the coordinator's time.

    Args:
        clock: Seconds by the clock of the event loop.

    Attributes:
        is_limiting: True while several devices are in use.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rests_until = 0.0
        self.is_limiting = False

    def allows(self, published: float) -> bool:
        """Return whether a job that was last published at some time may be published now."""
        if not self.is_limiting:
            return True
        now = self._clock()
        return now >= self._rests_until and now - published >= _STATUS_INTERVAL_SECS

    @contextmanager
    def charging(self) -> Iterator[None]:
        """Charge the time inside to the share of time that publishing may take."""
        started = self._clock()
        yield
        now = self._clock()
        self._rests_until = now + _REST_RATIO * (now - started)
