"""Virtual time: it passes as the coordinator works, and jumps over what it waits for.

The seconds of a simulation are the CPU time of the thread that runs the event loop, plus every
wait that was skipped. A machine that is busy with other things changes nothing, and neither does
what the simulation itself takes: the clock stands still meanwhile.
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
    """Seconds since it was made.

    Args:
        cpu: Seconds of CPU time that this thread has used.
    """

    def __init__(self, cpu: Callable[[], float] = time.thread_time) -> None:
        self._cpu = cpu
        self._offset = -cpu()
        self._stopped: float | None = None
        self._n_stops = 0
        self._stop = _Stop(self._halt, self._go_on)
        self.skipped_secs = 0.0

    def now(self) -> float:
        """Return the virtual time, seconds, never going back."""
        return self._offset + (self._cpu() if self._stopped is None else self._stopped)

    @property
    def worked_secs(self) -> float:
        """Seconds that the coordinator worked, or was charged for, and did not wait."""
        return self.now() - self.skipped_secs

    def skip(self, secs: float) -> None:
        """Jump over a wait."""
        self._offset += secs
        self.skipped_secs += secs

    def charge(self, secs: float) -> None:
        """Let pass what the coordinator would have worked, or stood still for, without it."""
        self._offset += secs

    def stopped(self) -> AbstractContextManager[None]:
        """Let no time pass inside, but what is skipped or charged; may be nested."""
        return self._stop

    def _halt(self) -> None:
        if self._n_stops == 0:
            self._stopped = self._cpu()
        self._n_stops += 1

    def _go_on(self) -> None:
        self._n_stops -= 1
        if self._n_stops == 0 and self._stopped is not None:
            self._offset += self._stopped - self._cpu()
            self._stopped = None


class _Stop(AbstractContextManager[None]):
    """Made once, for a generator would take longer than what it keeps from being counted."""

    def __init__(self, enter: Action, leave: Action) -> None:
        self._enter, self._leave = enter, leave

    def __enter__(self) -> None:
        self._enter()

    def __exit__(self, *_error: object) -> None:
        self._leave()


class Agenda:
    """What will happen in the simulated world, in the order of its time."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()

    @property
    def next_at(self) -> float:
        """When the next thing happens; inf if nothing does."""
        return self._entries[0][0] if self._entries else float("inf")

    def add(self, at: float, action: Action) -> None:
        """Have something happen; what happens at the same time happens in the order of adding."""
        heapq.heappush(self._entries, (at, next(self._numbers), action))

    def run(self, now: float) -> bool:
        """Let everything happen that is due; returns whether anything was."""
        was_due = self.next_at <= now
        while self.next_at <= now:
            heapq.heappop(self._entries)[2]()
        return was_due


class VirtualSelector(selectors.DefaultSelector):
    """Waits for nothing: time jumps to what is next, unless another thread has to go on."""

    def __init__(self, clock: VirtualClock, agenda: Agenda) -> None:
        super().__init__()
        self._clock = clock
        self._agenda = agenda

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return what is ready now; what the agenda has at the end of a wait happens in it."""
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
    """An event loop in virtual time."""

    def __init__(self, clock: VirtualClock, agenda: Agenda) -> None:
        super().__init__(VirtualSelector(clock, agenda))
        self.clock = clock
        self.agenda = agenda

    def time(self) -> float:
        """Return the virtual time, seconds."""
        return self.clock.now()

    def run_in_executor(  # type: ignore[override]  # its type is that of no Python version
        self,
        executor: object,  # noqa: ARG002
        func: Callable[..., Any],
        *args: Any,
    ) -> "asyncio.Future[Any]":
        """Call a function here and now: beside this thread, its time would not be counted."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future
