"""A semaphore whose waiters wait in the event loop, and whose slots are shared among clients."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import ClientDisconnect

from api.errors import Problem
from api.load.fair_queue import FairQueue

# No transaction of a request or of an import takes longer.
_STALL_TIMEOUT_SECS = 60.0
_RETRY_AFTER_SECS = 5
# A client that asks again sooner than this after an answer is in a hurry, and lets others go first.
_MIN_PAUSE_SECS = 0.1


@dataclass(eq=False)
class Peer:
    """The connection of a client, as far as its turn depends on it.

    Attributes:
        answered: Time of the last answer on it, by the clock of the event loop.
        is_hasty: True if the request came at once after the last answer.
        is_gone: True if the client has disconnected.
    """

    answered: float = -math.inf
    is_hasty: bool = False
    is_gone: bool = False
    _waiter: "asyncio.Future[Any] | None" = None

    def ask(self, now: float) -> None:
        """Note the start of a request."""
        self.is_hasty = now - self.answered < _MIN_PAUSE_SECS

    def leave(self) -> None:
        """Note that the client has disconnected; its request stops waiting."""
        self.is_gone = True
        if self._waiter is not None:
            self._waiter.cancel()

    def wait_by(self, waiter: "asyncio.Future[Any] | None") -> None:
        """Set the future that the request waits for; it is cancelled if the client has left."""
        self._waiter = waiter
        if waiter is not None and self.is_gone:
            waiter.cancel()

    def part(self) -> None:
        """Note that the answer is for one client: the request does more than read."""


@dataclass(eq=False)
class Sender:
    """The client of a request.

    Attributes:
        client: Token or address.
        peer: Connection of the request.
        program: Name of the program that sends it, if programs of one client are told apart.
        has_slot: True while the request holds a slot.
        has_begun: True once it got a slot or was answered.
    """

    client: str
    peer: Peer = field(default_factory=Peer)
    program: str = ""
    has_slot: bool = False
    has_begun: bool = False


#: Key of the peer in the scope of a request.
PEER = "tuner.peer"
#: The client of the current request. Work that several requests share has a sender of its own.
SENDER: ContextVar[Sender] = ContextVar("sender")


@dataclass(eq=False)
class FairSemaphore:
    """Admits a number of requests at a time.

    A free slot goes to the clients in turn, as :class:`~api.load.fair_queue.FairQueue` orders them.
    Without waiters nothing is delayed. A request whose client disconnects stops waiting.

    Args:
        max_waiting: Requests of one client that may wait.
        writes: True if requests with a slot change something.
    """

    n_slots: int
    max_waiting: int
    writes: bool = False
    _waiting: FairQueue[tuple[str, str], "asyncio.Future[None]"] = field(default_factory=FairQueue)
    _ended: float = -math.inf

    def __post_init__(self) -> None:
        self._n_free = self.n_slots

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot during the block.

        Raises:
            Problem: If no request ended for a long time, because the database hangs, or too many of
                the client wait.
            ClientDisconnect: If the client left before its turn.
            RuntimeError: If the request holds a slot already: waiting for another one, it could
                wait for itself.
        """
        sender = SENDER.get(None) or Sender("")
        if sender.has_slot:
            raise RuntimeError("a request that holds a slot waits for another one")
        if self.writes:
            sender.peer.part()
        await self._acquire(sender)
        sender.has_slot = sender.has_begun = has_worked = True
        try:
            yield
        except SQLAlchemyError:
            has_worked = False
            raise
        finally:
            sender.has_slot = False
            if has_worked:
                self._ended = asyncio.get_running_loop().time()
            self._release()

    async def _acquire(self, sender: Sender) -> None:
        if sender.peer.is_gone:
            raise ClientDisconnect
        if self._n_free:
            self._n_free -= 1
            return
        key = (sender.client, sender.program)
        if (n_waiting := self._waiting.n_of(key)) >= self.max_waiting:
            headers = {"retry-after": str(_RETRY_AFTER_SECS)}
            raise Problem(
                "busy", f"{n_waiting} requests of {sender.client} wait already", headers=headers
            )
        loop = asyncio.get_running_loop()
        arrived, waiter = loop.time(), loop.create_future()
        self._waiting.add(key, waiter, arrived, is_hasty=sender.peer.is_hasty)
        sender.peer.wait_by(waiter)
        try:
            while not waiter.done():
                left = max(arrived, self._ended) + _STALL_TIMEOUT_SECS - loop.time()
                if left <= 0:
                    headers = {"retry-after": str(_RETRY_AFTER_SECS)}
                    raise Problem(
                        "unavailable",
                        f"no request ended for {_STALL_TIMEOUT_SECS:.0f} s",
                        headers=headers,
                    )
                await asyncio.wait([waiter], timeout=left)
        except BaseException:
            # The slot may have been given at the same moment.
            if not waiter.cancel() and not waiter.cancelled():
                self._release()
            raise
        finally:
            sender.peer.wait_by(None)
            self._waiting.discard(key, waiter)
        if waiter.cancelled():
            raise ClientDisconnect

    def _release(self) -> None:
        """Give a slot to the next waiter, if there is one."""
        while self._waiting:
            waiter = self._waiting.pop()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._n_free += 1
