"""Groups of pools of one piece of background work, whose processes pause and end together."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.workers.pool import Pool

_CURRENT: ContextVar["PauseGroup | None"] = ContextVar("pause_group", default=None)


class PauseGroup:
    """Pools that are opened inside :meth:`collecting`, until they are closed.

    Pausing stops their processes by SIGSTOP, so that they use no core, and keeps threads from
    handing them new calls. The time-outs of calls wait while the group is paused. A group that was
    closed lets no pool live. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: list[Pool] = []
        self._is_running = threading.Event()
        self._is_running.set()
        self._is_closed = False

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Add the pools that are opened inside, in this thread or task, to the group."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def add(self, pool: "Pool") -> None:
        """Add a pool that was just opened."""
        with self._lock:
            self._pools.append(pool)
            is_closed = self._is_closed
        if is_closed:
            pool.close()

    def discard(self, pool: "Pool") -> None:
        """Remove a pool that is about to be closed."""
        with self._lock:
            if pool in self._pools:
                self._pools.remove(pool)

    def wait_until_running(self) -> None:
        """Wait while the group is paused."""
        self._is_running.wait()

    def pause(self) -> None:
        """Stop all processes; one that is being started stops once it is set up."""
        with self._lock:
            self._is_running.clear()
            for pool in self._pools:
                pool.pause()

    def resume(self) -> None:
        """Let all processes continue."""
        with self._lock:
            for pool in self._pools:
                pool.resume()
            self._is_running.set()

    def close(self) -> None:
        """Kill all processes, also of pools that are opened later; their calls are lost."""
        with self._lock:
            self._is_closed = True
            pools = list(self._pools)
        for pool in pools:
            pool.close()
        self._is_running.set()


def current_group() -> PauseGroup | None:
    """Return the group that collects the pools of this thread or task, if there is one."""
    return _CURRENT.get()
