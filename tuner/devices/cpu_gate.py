"""Shared and exclusive use of the cores of a CPU that is also timed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol

# Time that background work gets between two exclusive uses of the same round.
_BACKGROUND_SECS = 3.0


class Pausable(Protocol):
    """Work in other processes that can be stopped at any moment."""

    def pause(self) -> None:
        """Use no core until :meth:`resume`; returns at once."""

    def resume(self) -> None:
        """Continue."""


class CpuGate:
    """Lock of the cores: shared by work, exclusive to measurements.

    A wait for exclusive use keeps others from starting shared use. Shared use must not be
    nested. Not thread-safe: used in one event loop.
    """

    def __init__(self) -> None:
        self._n_shared = 0
        self._n_waiting = 0
        self._is_exclusive = False
        self._background: list[Pausable] = []
        self._changed = asyncio.Event()
        self._shared = _Shared(self._enter_shared, self._leave_shared)

    def shared(self) -> AbstractAsyncContextManager[None]:
        """Use cores inside, beside others that do."""
        return self._shared

    async def _enter_shared(self) -> None:
        while self._is_exclusive or self._n_waiting:
            await self._changed.wait()
        self._n_shared += 1

    def _leave_shared(self) -> None:
        self._n_shared -= 1
        if not self._n_shared:
            self._notify()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Have all cores inside: builds, searches and loads wait."""
        self._n_waiting += 1
        try:
            while self._is_exclusive or self._n_shared:
                await self._changed.wait()
        finally:
            self._n_waiting -= 1
            self._notify()
        self._is_exclusive = True
        try:
            for work in self._background:
                work.pause()
            yield
        finally:
            for work in self._background:
                work.resume()
            self._is_exclusive = False
            self._notify()

    @contextmanager
    def background(self, work: Pausable) -> Iterator[None]:
        """Pause work that runs inside during each exclusive use.

        Exclusive use does not wait for it, however long it takes. It continues whenever a round
        searches or builds, so that measurements cannot hold it up for ever.
        """
        self._background.append(work)
        if self._is_exclusive:
            work.pause()
        try:
            yield
        finally:
            self._background.remove(work)
            work.resume()

    async def give_way(self) -> None:
        """Let what waits for the cores have them; call it between two exclusive uses."""
        # Those that wait wake up in this step of the event loop, before exclusive use is requested.
        await asyncio.sleep(_BACKGROUND_SECS if self._background else 0.0)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _Shared(AbstractAsyncContextManager[None]):
    """Reusable context manager: every build enters it, and a generator would take longer."""

    def __init__(
        self, enter: Callable[[], Coroutine[Any, Any, None]], leave: Callable[[], None]
    ) -> None:
        self._enter, self._leave = enter, leave

    async def __aenter__(self) -> None:
        await self._enter()

    async def __aexit__(self, *_error: object) -> None:
        self._leave()
