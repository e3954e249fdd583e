"""Starts requests a few at a time, so that new ones are seen while many wait."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from api.fair_queue import FairQueue

Start: TypeAlias = Callable[[], None]
# Requests between two looks at the sockets. The first step of each takes about a millisecond.
_N_AT_ONCE = 4
# uvloop accepts one connection at a look, so that no request starts while more arrive, for so long.
_MAX_DELAY_SECS = 0.1


@dataclass(eq=False)
class Turns:
    """Queues the starts of requests, which clients have in turn.

    Without it the event loop would begin every request that has arrived before it looks at the
    sockets again, and a probe would wait for all of them several times.
    """

    _starts: FairQueue[str, Start] = field(default_factory=FairQueue)
    _is_awake: bool = False
    _has_arrival: bool = False
    _started: float = 0.0

    def note_arrival(self) -> None:
        """Note that a connection was accepted: there may be more, with requests that go first."""
        self._has_arrival = True

    def add(self, client: str, start: Start, *, is_hasty: bool) -> None:
        """Call a function, which does not raise, when the client has its turn.

        Args:
            client: Name of the client.
            start: Starts the request, or does nothing if its connection is closed.
            is_hasty: True if the request came at once after the last answer on its connection.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._starts.add(client, start, now, is_hasty=is_hasty)
        if not self._is_awake:
            self._is_awake, self._started = True, now
            loop.call_soon(self._start_some)

    def _start_some(self) -> None:
        loop = asyncio.get_running_loop()
        may_wait = loop.time() < self._started + _MAX_DELAY_SECS
        if not (self._has_arrival and may_wait):
            for _ in range(_N_AT_ONCE):
                if self._starts:
                    self._starts.pop()()
            self._started = loop.time()
        self._has_arrival = False
        self._is_awake = bool(self._starts)
        if self._is_awake:
            loop.call_soon(self._start_some)
