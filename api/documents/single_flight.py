"""Single-flight: concurrent calls with the same key share one execution."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from api.load.fair_semaphore import SENDER, Sender

Answer = TypeVar("Answer")


class SingleFlight(Generic[Answer]):
    """Runs at most one call for each key at a time; concurrent callers get its answer."""

    def __init__(self) -> None:
        self._running: dict[Any, asyncio.Task[Answer]] = {}

    async def join(self, key: Any, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer of the running call for a key, or else run this one."""
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(_run(call))
            self._running[key] = task
            task.add_done_callback(lambda done: self._end(key, done))
        # Shielded, because the cancellation of one client must not cancel the others.
        return await asyncio.shield(task)

    def _end(self, key: Any, task: "asyncio.Task[Answer]") -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio warns if all callers have left


async def _run(call: Callable[[], Awaitable[Answer]]) -> Answer:
    # The client that came first may leave, and its slot is not that of the call.
    sender = SENDER.get(None)
    SENDER.set(Sender("") if sender is None else Sender(sender.client, program=sender.program))
    return await call()
