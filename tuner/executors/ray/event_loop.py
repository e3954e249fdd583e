"""An event loop in a thread of its own, for callers with an event loop and without."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from tuner.errors import WorkerLost
from tuner.workers.future_call import FutureCall


class BackgroundLoop:
    """An event loop in a daemon thread, which starts with this object."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tuner-fleet", daemon=True
        )
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Any]) -> FutureCall:
        """Run a coroutine; a call whose loop is closed before it ends raises WorkerLost."""
        return FutureCall(asyncio.run_coroutine_threadsafe(_lost_if_cancelled(work), self._loop))

    def run(self, work: Callable[[], None]) -> None:
        """Call a function in the loop, and return at once."""
        self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """Cancel all tasks, and end the thread."""
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _lost_if_cancelled(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await work
    except asyncio.CancelledError:
        raise WorkerLost("its executor was closed", crashed=False) from None


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
