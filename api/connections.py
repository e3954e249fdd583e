"""The open connections of a server: a limit for all, one for each address, and room for probes."""

import asyncio
from dataclasses import dataclass, field

from api.capacity import N_PROBE_CONNECTIONS, share_of_client

# A connection that has just been opened may have sent its request already.
_MIN_WAIT_SECS = 1.0


@dataclass(eq=False)
class Connections:
    """Counts connections, and ends some of those that only wait where there are too many.

    A connection waits while it has no complete head of a request: it is new, between two requests,
    or its head is arriving. One address has a share of the limit for those; of more, the oldest is
    ended. At the limit of all, the oldest of the address with most makes room for a new one. Where
    all are at work, some more may be open, for probes only.

    Args:
        limit: Maximum of connections besides those for probes.
        is_behind_proxy: True if the address of a proxy stands for many clients.
    """

    limit: int
    is_behind_proxy: bool = False
    _open: set[asyncio.Transport] = field(default_factory=set)
    _waiting: dict[str, dict[asyncio.Transport, float]] = field(default_factory=dict)
    _crowded: set[str] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        """True if there is room for probes only."""
        return len(self._open) > self.limit

    def open(self, address: str, transport: asyncio.Transport) -> None:
        """Count a new connection, which waits."""
        self._open.add(transport)
        if self.is_full and self._waiting:
            largest = max(self._waiting, key=lambda key: len(self._waiting[key]))
            self._end(largest, next(iter(self._waiting[largest])))
        if len(self._open) > self.limit + N_PROBE_CONNECTIONS:
            self._end(address, transport)
        else:
            self.wait(address, transport)

    def wait(self, address: str, transport: asyncio.Transport) -> None:
        """Note that a connection has answered, and waits for the next request."""
        if transport in self._open:
            waiting = self._waiting.setdefault(address, {})
            waiting[transport] = asyncio.get_running_loop().time()
            if not self.is_behind_proxy and address not in self._crowded:
                self._trim(address)

    def work(self, address: str, transport: asyncio.Transport) -> None:
        """Note that a connection has received the head of a request."""
        waiting = self._waiting.get(address, {})
        waiting.pop(transport, None)
        if not waiting:
            self._waiting.pop(address, None)

    def close(self, address: str, transport: asyncio.Transport) -> None:
        """Stop counting a connection."""
        self._open.discard(transport)
        self.work(address, transport)

    def _trim(self, address: str) -> None:
        """End the oldest waiting connections of an address beyond its share."""
        self._crowded.discard(address)
        loop = asyncio.get_running_loop()
        while len(waiting := self._waiting.get(address, {})) > share_of_client(self.limit):
            transport, since = next(iter(waiting.items()))
            if (left := since + _MIN_WAIT_SECS - loop.time()) > 0:
                self._crowded.add(address)
                loop.call_later(left, self._trim, address)
                return
            self._end(address, transport)

    def _end(self, address: str, transport: asyncio.Transport) -> None:
        self.close(address, transport)
        transport.abort()  # a client that reads nothing would delay any other end
