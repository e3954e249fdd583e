"""The utilisation of a device: the share of time in which at least one of its workers is busy."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar


class _HasFuture(Protocol):
    """A call that ends with a future."""

    @property
    def future(self) -> Future[Any]: ...


_Call = TypeVar("_Call", bound=_HasFuture)


class UtilisationMeter:
    """Adds up the time in which at least one call runs; thread-safe.

    Args:
        window_secs: Length of the sliding window that :meth:`share` looks at.
        clock: Monotonic clock, seconds.
    """

    def __init__(
        self, window_secs: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._window_secs = window_secs
        self._clock = clock
        self._lock = threading.Lock()
        self._n_calls = 0
        self._since = self._started = clock()
        self._ended_secs = 0.0
        self._spans: deque[tuple[float, float]] = deque()
        # Length of all spans: hundreds of devices have hundreds each.
        self._spans_secs = 0.0

    def begin(self) -> None:
        """Count the start of a call."""
        with self._lock:
            if self._n_calls == 0:
                self._since = self._clock()
            self._n_calls += 1

    def end(self) -> None:
        """Count the end of a call."""
        with self._lock:
            self._n_calls -= 1
            if self._n_calls == 0:
                at = self._clock()
                self._ended_secs += at - self._since
                self._spans.append((self._since, at))
                self._spans_secs += at - self._since
                self._forget(at)

    def watch(self, call: _Call) -> _Call:
        """Count a call from now until it ends, and return it."""
        self.begin()
        call.future.add_done_callback(lambda _: self.end())
        return call

    @property
    def busy_secs(self) -> float:
        """Seconds of work since the meter was made."""
        with self._lock:
            return self._ended_secs + (self._clock() - self._since if self._n_calls else 0.0)

    def share(self) -> float:
        """Return the share of work in the window before now, from 0 to 1."""
        with self._lock:
            at = self._clock()
            self._forget(at)
            begin = max(at - self._window_secs, self._started)
            busy = self._spans_secs
            if self._spans:
                # Only the first may have begun before the window.
                busy -= max(begin - self._spans[0][0], 0.0)
            if self._n_calls:
                busy += at - max(self._since, begin)
            return min(max(busy, 0.0) / (at - begin), 1.0) if at > begin else 0.0

    def _forget(self, at: float) -> None:
        while self._spans and self._spans[0][1] < at - self._window_secs:
            start, end = self._spans.popleft()
            self._spans_secs -= end - start
