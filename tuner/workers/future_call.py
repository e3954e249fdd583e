"""Calls that end with a future of another thread, and waits for them."""

import asyncio
from collections.abc import Generator, Iterable
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tuner import interrupts


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
