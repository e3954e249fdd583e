"""Work that many ask for at the same time, and one does."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")


class SingleFlight(Generic[Answer]):
    """Runs at most one call a key at a time; whoever asks meanwhile gets its answer."""

    def __init__(self) -> None:
        self._running: dict[Any, asyncio.Task[Answer]] = {}

    async def join(self, key: Any, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer of the call that runs, or of this one."""
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(_run(call))
            self._running[key] = task
            task.add_done_callback(lambda done: self._end(key, done))
        # Shielded: one client that goes away does not take the answer from the others.
        return await asyncio.shield(task)

    def _end(self, key: Any, task: "asyncio.Task[Answer]") -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # or asyncio complains if all who asked have gone


async def _run(call: Callable[[], Awaitable[Answer]]) -> Answer:
    return await call()
