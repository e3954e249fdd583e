"""Calls to simulated workers, which end at times of an agenda, with a result or an error."""

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
    """State that all simulated workers share: time, future events, and random numbers.

    Attributes:
        loop: Event loop of the coordinator; set by :meth:`make_loop`.
        draw: Function that returns seeded random numbers from 0 to 1.
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
        """Charge for a call, and stop the clock while the block simulates it."""
        self.clock.charge(self.scenario.costs.call_secs)
        return self.clock.stopped()

    def happens(self, share: float) -> bool:
        """Return True with probability ``share``."""
        return share > 0.0 and self.draw() < share

    def wait_for(self, rate: float) -> float:
        """Draw the seconds until the next event of a Poisson process, ``rate`` per second."""
        return self._random.expovariate(rate) if rate > 0.0 else float("inf")

    def plan(self, at: float, action: Action) -> None:
        """Schedule an action; run it at once if its time has come."""
        if at <= self.clock.now():
            action()
        elif at < float("inf"):
            self.agenda.add(at, action)


class SimulatedCall:
    """Call of a simulated worker; see :class:`tuner.workers.base.Call`."""

    __slots__ = ("_future",)

    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def result(self) -> Any:
        """Return the result of a finished call.

        Raises:
            WorkError: If it has not finished; time advances only in the event loop.
        """
        if not self._future.done():
            raise WorkError("await a simulated call: time advances only in the event loop")
        return self._future.result()

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the call in an event loop."""
        return self._future.__await__()

    def end(self, outcome: Any) -> bool:
        """End with a value, an exception, or the result of a function.

        Returns:
            True if the call was still pending.
        """
        if self._future.done():
            return False
        if isinstance(outcome, BaseException):
            self._future.set_exception(outcome)
            self._future.exception()  # asyncio warns about exceptions that are never retrieved
        else:
            self._future.set_result(outcome() if callable(outcome) else outcome)
        return True


def fate(world: World, secs: float, outcome: Any, timeout_secs: float) -> tuple[float, Any]:
    """Return the seconds that a call occupies its worker, and its outcome.

    Args:
        world: Source of random numbers.
        secs: Seconds of the work; inf if it hangs.
        outcome: Outcome of the work, see :meth:`SimulatedCall.end`.
        timeout_secs: Time-out of the call.
    """
    if world.happens(world.scenario.faults.worker_deaths):
        lost = WorkerLost("the worker was killed by SIGKILL", crashed=False)
        return world.draw() * min(secs, timeout_secs), lost
    if secs > timeout_secs:
        return timeout_secs, CallTimeout()
    return secs, outcome
