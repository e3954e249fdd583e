"""Virtual time, which advances with the coordinator's work and jumps over its waits.

The seconds of a simulation are the CPU time of the thread that runs the event loop, plus all
skipped waits. Other load on the machine changes nothing, nor does the work of the simulation
itself, during which the clock is stopped.
"""

import asyncio
import heapq
import itertools
import selectors
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

Action = Callable[[], None]


class VirtualClock:
    """Clock that counts virtual seconds from its creation.

    Args:
        cpu: Function that returns the CPU seconds of this thread.
    """

    def __init__(self, cpu: Callable[[], float] = time.thread_time) -> None:
        self._cpu = cpu
        self._offset = -cpu()
        self._stopped: float | None = None
        self._n_stops = 0
        self._stop = _Stop(self._halt, self._resume)
        self.skipped_secs = 0.0

    def now(self) -> float:
        """Return the virtual time in seconds; it never decreases."""
        return self._offset + (self._cpu() if self._stopped is None else self._stopped)

    @property
    def worked_secs(self) -> float:
        """Seconds of the coordinator's work and charges, without its waits."""
        return self.now() - self.skipped_secs

    def skip(self, secs: float) -> None:
        """Jump over a wait."""
        self._offset += secs
        self.skipped_secs += secs

    def charge(self, secs: float) -> None:
        """Advance the time by work, or by a blocking wait, that is not simulated."""
        self._offset += secs

    def stopped(self) -> AbstractContextManager[None]:
        """Stop the time inside of the block, except for skips and charges; blocks may be nested."""
        return self._stop

    def _halt(self) -> None:
        if self._n_stops == 0:
            self._stopped = self._cpu()
        self._n_stops += 1

    def _resume(self) -> None:
        self._n_stops -= 1
        if self._n_stops == 0 and self._stopped is not None:
            self._offset += self._stopped - self._cpu()
            self._stopped = None


class _Stop(AbstractContextManager[None]):
    """Reusable context manager; a generator would take longer than the work it excludes."""

    def __init__(self, enter: Action, leave: Action) -> None:
        self._enter, self._leave = enter, leave

    def __enter__(self) -> None:
        self._enter()

    def __exit__(self, *_error: object) -> None:
        self._leave()


class Agenda:
    """Future events of the simulated world, in the order of their time."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()

    @property
    def next_at(self) -> float:
        """Time of the next event; inf if there is none."""
        return self._entries[0][0] if self._entries else float("inf")

    def add(self, at: float, action: Action) -> None:
        """Add an event; events of the same time run in the order of their addition."""
        heapq.heappush(self._entries, (at, next(self._numbers), action))

    def run(self, now: float) -> bool:
        """Run all events that are due; return True if there were any."""
        was_due = self.next_at <= now
        while self.next_at <= now:
            heapq.heappop(self._entries)[2]()
        return was_due


class VirtualSelector(selectors.DefaultSelector):
    """Selector that jumps to the next event instead of waiting, unless another thread must run."""

    def __init__(self, clock: VirtualClock, agenda: Agenda) -> None:
        super().__init__()
        self._clock = clock
        self._agenda = agenda

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return the files that are ready now, after the events at the end of a skipped wait."""
        ready = super().select(0)
        with self._clock.stopped():
            now = self._clock.now()
            if self._agenda.run(now) or ready:
                return ready
            wait = self._agenda.next_at - now
            if timeout is not None:
                wait = min(wait, max(timeout, 0.0))
            if wait < float("inf"):
                self._clock.skip(wait)
                self._agenda.run(self._clock.now())
                return ready
        return super().select(None)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop in virtual time."""

    def __init__(self, clock: VirtualClock, agenda: Agenda) -> None:
        super().__init__(VirtualSelector(clock, agenda))
        self.clock = clock
        self.agenda = agenda

    def time(self) -> float:
        """Return the virtual time, seconds."""
        return self.clock.now()

    def run_in_executor(  # type: ignore[override]  # typeshed's signature fits no Python version
        self,
        executor: object,  # noqa: ARG002
        func: Callable[..., Any],
        *args: Any,
    ) -> "asyncio.Future[Any]":
        """Call a function in this thread, because the time of other threads is not counted."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future
