"""Calls that end with a future of another thread, and how an event loop waits for one."""

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tuner import interrupts


@dataclass(frozen=True)
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


def done_event(future: Future[Any]) -> asyncio.Event:
    """Return an event of the running loop that is set when a future is done."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def notify(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # a closed loop has no waiting tasks
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(notify)
    return done
