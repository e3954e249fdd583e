"""Calls that a worker process runs: their contract, and those that end with a future."""

import asyncio
from collections.abc import Generator, Iterable
from concurrent import futures
from concurrent.futures import Future
from concurrent.futures import TimeoutError as CallTimeout
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from tuner import interrupts

__all__ = ["Call", "CallTimeout"]


@dataclass(frozen=True, eq=False)
class FutureCall:
    """A :class:`tuner.workers.base.Call` whose result is that of a future."""

    future: Future[Any]

    def result(self) -> Any:
        """Block until the future is done."""
        with interrupts.waiting():
            return self.future.result()

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the future in an event loop."""
        return self._wait().__await__()

    async def _wait(self) -> Any:
        await done_event(self.future).wait()
        return self.future.result()


def first_of(calls: Iterable[FutureCall]) -> FutureCall:
    """Wait until one of several calls has ended, and return it; ties go to the first."""
    pending = list(calls)
    with interrupts.waiting():
        futures.wait([call.future for call in pending], return_when=futures.FIRST_COMPLETED)
    return next(call for call in pending if call.future.done())


def done_event(future: Future[Any]) -> asyncio.Event:
    """Return an event of the running loop that is set when a future is done."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def notify(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # a closed loop has no waiting tasks
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(notify)
    return done


class Call(Protocol):
    """A call that was handed to a worker, to be waited for once.

    Both ways of waiting raise alike: CallTimeout if the call exceeded its time-out, WorkerLost
    if its worker died, DeviceLost if its device cannot take calls any more, and TunerError or
    OSError as the function raised them; any other exception of the function arrives as WorkError.
    """

    def result(self) -> Any:
        """Block until the call has ended, and return its result."""

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the call in an event loop. Cancelling the wait does not stop the call."""
