"""Coroutines that run in a thread of their own, for callers with an event loop and without."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tuner import interrupts
from tuner.errors import WorkerLost


@dataclass(frozen=True)
class RayCall:
    """A call under way in such a thread; see :class:`tuner.executors.base.Call`."""

    future: Future[Any]

    def result(self) -> Any:
        """Wait for the call, and do nothing else meanwhile."""
        with interrupts.waiting():
            futures.wait([self.future])
        return self.future.result()

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the call in an event loop."""
        return self._ended().__await__()

    async def _ended(self) -> Any:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # a loop that was closed has nobody who waits
                loop.call_soon_threadsafe(ended.set)

        self.future.add_done_callback(tell)
        await ended.wait()
        return self.future.result()


class BackgroundLoop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tuner-fleet", daemon=True
        )
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Any]) -> RayCall:
        """Run a coroutine there; one that does not end before the loop is a lost call."""
        return RayCall(asyncio.run_coroutine_threadsafe(_reported(work), self._loop))

    def run(self, work: Callable[[], None]) -> None:
        """Call a function there; returns at once."""
        self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """Cancel what is under way, and end the thread."""
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _reported(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await work
    except asyncio.CancelledError:
        raise WorkerLost("its executor was closed", crashed=False) from None


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
