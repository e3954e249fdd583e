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
    """See :class:`tuner.workers.base.Call`."""

    future: Future[Any]

    def result(self) -> Any:
        """Wait for the call, and do nothing else meanwhile."""
        with interrupts.waiting():
            return self.future.result()

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the call in an event loop."""
        return self._ended().__await__()

    async def _ended(self) -> Any:
        await end_of(self.future).wait()
        return self.future.result()


def end_of(future: Future[Any]) -> asyncio.Event:
    """Return what the running loop is told by when a future has ended."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # a loop that was closed has nobody who waits
            loop.call_soon_threadsafe(ended.set)

    future.add_done_callback(tell)
    return ended
