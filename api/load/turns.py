"""Starts requests a few at a time, so that new ones are seen while many wait."""

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import TypeAlias

from api.load.fair_queue import FairQueue

Start: TypeAlias = Callable[[], None]
# Requests between two looks at the sockets. The first step of each takes up to a millisecond, and a
# look takes several beside threads that compute.
_N_AT_ONCE = 16
# No request starts while connections arrive: uvloop accepts one at a look, or at each second look.
_N_QUIET = 3
# Processor time of the event loop after which some start in any case.
_MAX_DELAY_SECS = 0.1


@dataclass(eq=False)
class Turns:
    """Queues the starts of requests, which clients have in turn.

    Without it the event loop would begin every request that has arrived before it looks at the
    sockets again, and a probe would wait for all of them several times.
    """

    _starts: FairQueue[str, Start] = field(default_factory=FairQueue)
    _is_awake: bool = False
    _n_quiet: int = 0
    _started: float = 0.0

    def note_arrival(self) -> None:
        """Note that a connection was accepted: there may be more, with requests that go first."""
        self._n_quiet = 0

    def add(self, client: str, start: Start, *, is_hasty: bool) -> None:
        """Call a function when the client has its turn; an error of it goes to the event loop.

        Args:
            start: Starts the request, or does nothing if its connection is closed.
            is_hasty: True if the request came at once after the last answer on its connection.
        """
        arrived = asyncio.get_running_loop().time()
        self._starts.add(client, start, arrived, is_hasty=is_hasty)
        if not self._is_awake:
            self._is_awake, self._started = True, time.thread_time()
            self._call_soon()

    def _start_some(self) -> None:
        self._n_quiet += 1
        now = time.thread_time()
        if self._n_quiet >= _N_QUIET or now >= self._started + _MAX_DELAY_SECS:
            for _ in range(_N_AT_ONCE):
                if self._starts:
                    self._start(self._starts.pop())
            self._started = now
        self._is_awake = bool(self._starts)
        if self._is_awake:
            self._call_soon()

    def _call_soon(self) -> None:
        # Requests inherit nothing from the one whose answer or connection started this.
        asyncio.get_running_loop().call_soon(self._start_some, context=Context())

    def _start(self, start: Start) -> None:
        try:
            start()
        except Exception as error:  # those that wait behind it have their turns all the same
            context = {"message": "a request did not start", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
