"""Cores are either worked on or measured on: while a CPU is timed, builders rest."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any


class CpuGate:
    """Lets many work or one measure; who waits to measure keeps others from starting to work."""

    def __init__(self) -> None:
        self._n_working = 0
        self._n_wanting = 0
        self._measuring = False
        self._changed = asyncio.Event()
        self._working = _Working(self._begin, self._end)

    def working(self) -> AbstractAsyncContextManager[None]:
        """Use cores inside, beside others who do."""
        return self._working

    async def _begin(self) -> None:
        while self._measuring or self._n_wanting:
            await self._changed.wait()
        self._n_working += 1

    def _end(self) -> None:
        self._n_working -= 1
        if not self._n_working:
            self._tell()

    @asynccontextmanager
    async def measuring(self) -> AsyncIterator[None]:
        """Have the cores alone inside."""
        self._n_wanting += 1
        try:
            await self._until(lambda: not self._measuring and not self._n_working)
        finally:
            self._n_wanting -= 1
            self._tell()
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False
            self._tell()

    async def _until(self, is_free: Callable[[], bool]) -> None:
        while not is_free():
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _Working(AbstractAsyncContextManager[None]):
    """Made once: every build goes through it, and a generator would take longer than it does."""

    def __init__(
        self, enter: Callable[[], Coroutine[Any, Any, None]], leave: Callable[[], None]
    ) -> None:
        self._enter, self._leave = enter, leave

    async def __aenter__(self) -> None:
        await self._enter()

    async def __aexit__(self, *_error: object) -> None:
        self._leave()
