"""Cores are either worked on or measured on: while a CPU is timed, builders rest."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Quiet:
    """Lets many work or one measure; who waits to measure keeps others from starting to work."""

    def __init__(self) -> None:
        self._n_working = 0
        self._n_wanting = 0
        self._measuring = False
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Use cores inside, beside others who do."""
        await self._until(lambda: not self._measuring and not self._n_wanting)
        self._n_working += 1
        try:
            yield
        finally:
            self._n_working -= 1
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
