"""The open connections of a server: a limit for all, two for each address, and room for probes."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from api.load.capacity import N_PROBE_CONNECTIONS, share_at_work, share_of_client

# A connection that has just been opened may have sent its request already.
_MIN_WAIT_SECS = 1.0


@dataclass(eq=False)
class Connections:
    """Counts connections, and ends some of those that only wait where there are too many.

    A connection waits while the next step is its client's: it is new, between two requests, the
    head of a request is arriving, or its client does not read what was sent. One address has a
    share of the limit for those; of more, the oldest is ended. At the limit of all, the oldest of
    the address with most makes room for a new one. One address may have a larger share at work.
    Where all are at work, some more may be open, for probes only.

    Args:
        limit: Maximum of connections besides those for probes.
        is_behind_proxy: True if the address of a proxy stands for many clients.
    """

    limit: int
    is_behind_proxy: bool = False
    _open: dict[asyncio.Transport, str] = field(default_factory=dict)
    _n_open: Counter[str] = field(default_factory=Counter)
    _waiting: dict[str, dict[asyncio.Transport, float]] = field(default_factory=dict)
    _crowded: set[str] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        """True if there is room for probes only."""
        return len(self._open) > self.limit

    def is_crowded(self, transport: asyncio.Transport) -> bool:
        """Return whether the address of a connection has too many at work."""
        address = self._open.get(transport, "")
        n_working = self._n_open[address] - len(self._waiting.get(address, ()))
        return not self.is_behind_proxy and n_working > share_at_work(self.limit)

    def open(self, address: str, transport: asyncio.Transport) -> None:
        """Count a new connection, which waits."""
        self._open[transport] = address
        self._n_open[address] += 1
        if self.is_full and self._waiting:
            largest = max(self._waiting.values(), key=len)
            self._end(next(iter(largest)))
        if len(self._open) > self.limit + N_PROBE_CONNECTIONS:
            self._end(transport)
        else:
            self.wait(transport)

    def wait(self, transport: asyncio.Transport) -> None:
        """Note that the next step is the client's, unless that is so already."""
        address = self._open.get(transport)
        if address is None or transport in self._waiting.get(address, ()):
            return
        waiting = self._waiting.setdefault(address, {})
        waiting[transport] = asyncio.get_running_loop().time()
        if not self.is_behind_proxy and address not in self._crowded:
            self._trim(address)

    def work(self, transport: asyncio.Transport) -> None:
        """Note that the next step is the server's."""
        address = self._open.get(transport, "")
        waiting = self._waiting.get(address, {})
        waiting.pop(transport, None)
        if not waiting:
            self._waiting.pop(address, None)

    def close(self, transport: asyncio.Transport) -> None:
        """Stop counting a connection."""
        self.work(transport)
        address = self._open.pop(transport, None)
        if address is not None:
            self._n_open[address] -= 1
            if not self._n_open[address]:
                del self._n_open[address]

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
            self._end(transport)

    def _end(self, transport: asyncio.Transport) -> None:
        self.close(transport)
        transport.abort()  # a client that reads nothing would delay any other end
