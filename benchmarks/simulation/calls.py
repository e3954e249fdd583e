"""Calls to simulated workers: they end when the agenda says so, well or not."""

import random
from asyncio import AbstractEventLoop, Future
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any

from benchmarks.simulation.clock import Action, Agenda, VirtualClock, VirtualLoop
from benchmarks.simulation.scenario import Scenario
from tuner.errors import WorkerLost, WorkError
from tuner.workers.base import CallTimeout


class World:
    """What all simulated workers share: the time, what is to come, and chance.

    Attributes:
        loop: Runs the coordinator; there from :meth:`make_loop` on.
        draw: Returns numbers from 0 to 1, seeded.
    """

    loop: AbstractEventLoop

    def __init__(self, scenario: Scenario, clock: VirtualClock | None = None) -> None:
        self.scenario = scenario
        self.clock = clock or VirtualClock()
        self.agenda = Agenda()
        self._random = random.Random(scenario.seed)
        self.draw = self._random.random

    def make_loop(self) -> AbstractEventLoop:
        """Return the event loop in which this world's time passes."""
        self.loop = VirtualLoop(self.clock, self.agenda)
        return self.loop

    def handing_over(self) -> AbstractContextManager[None]:
        """Charge for a call, and stop the clock while it is made up inside."""
        self.clock.charge(self.scenario.costs.call_secs)
        return self.clock.stopped()

    def happens(self, share: float) -> bool:
        """Toss a coin that falls so with a share of its throws."""
        return share > 0.0 and self.draw() < share

    def wait_for(self, rate: float) -> float:
        """Draw how long it is until something happens that does so ``rate`` times a second."""
        return self._random.expovariate(rate) if rate > 0.0 else float("inf")

    def plan(self, at: float, action: Action) -> None:
        """Have something happen, at once if it is time."""
        if at <= self.clock.now():
            action()
        elif at < float("inf"):
            self.agenda.add(at, action)


class SimulatedCall:
    """A call that was handed to a simulated worker; see :class:`tuner.workers.base.Call`."""

    __slots__ = ("_future",)

    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def result(self) -> Any:
        """Return what came of a call that is over.

        Raises:
            WorkError: If it is not: time passes in the event loop alone.
        """
        if not self._future.done():
            raise WorkError("a simulated call has to be awaited: time passes in the event loop")
        return self._future.result()

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the call in an event loop."""
        return self._future.__await__()

    def end(self, outcome: Any) -> bool:
        """Answer with a value, or raise an exception, or answer what a function returns.

        Returns:
            Whether anybody still waited for it.
        """
        if self._future.done():
            return False
        if isinstance(outcome, BaseException):
            self._future.set_exception(outcome)
            self._future.exception()  # asyncio complains of one that nobody looked at
        else:
            self._future.set_result(outcome() if callable(outcome) else outcome)
        return True


def fate(world: World, secs: float, outcome: Any, timeout_secs: float) -> tuple[float, Any]:
    """Return how long a call keeps its worker, seconds, and what comes of it.

    Args:
        world: Chance.
        secs: That the work takes; inf if it hangs.
        outcome: Of the work, see :meth:`SimulatedCall.end`.
        timeout_secs: Of the call.
    """
    if world.happens(world.scenario.faults.worker_deaths):
        lost = WorkerLost("the worker was killed by SIGKILL", crashed=False)
        return world.draw() * min(secs, timeout_secs), lost
    if secs > timeout_secs:
        return timeout_secs, CallTimeout()
    return secs, outcome
