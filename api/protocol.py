"""HTTP/1.1 with limits on heads of requests and on connections, which uvicorn lacks.

It subclasses a private class of uvicorn; see ADR 0028.
"""

from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.fair_semaphore import PEER, Peer

if TYPE_CHECKING:
    import asyncio

    from api.connections import Connections

#: Maximum size of request line and headers together.
MAX_HEAD_BYTES = 64 * 1024
_HEAD_TIMEOUT_SECS = 30.0
_RETRY_AFTER = (b"retry-after", b"5")
#: Paths of probes, which are answered at any number of connections.
PROBES = ("/healthz", "/readyz")


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose request head is too long, or takes too long to arrive.

    Otherwise a client could fill the memory before it is authenticated. Beyond the limit of
    :class:`~api.connections.Connections`, which the state of the application has, only probes are
    served, and other answers say when to try again.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._peer = Peer()
        self._address = ""
        self._is_extra = False
        self._open: Connections = self.config.app.state.connections  # type: ignore[union-attr]

    def connection_made(self, transport: Any) -> None:
        """Start the timer for the first request."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._open.open(self._address, transport)
        self._is_extra = self._open.is_full
        self._start_timer()

    def connection_lost(self, error: Exception | None) -> None:
        """Stop the timer, and waiting for a slot."""
        self._stop_timer()
        self._open.close(self._address, self.transport)
        self._peer.leave()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """Pass data on, and close the connection if the head of the request is too long."""
        if self._in_head:
            if not self._head_bytes:
                self._start_timer()
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        """Give the request the peer, which orders those that wait for a slot."""
        super().on_message_begin()
        self._peer.ask(self.loop.time())
        cast("dict[str, Any]", self.scope)[PEER] = self._peer

    def on_headers_complete(self) -> None:
        """Stop the timer: the body has limits of its own."""
        self._in_head = False
        self._stop_timer()
        self._open.work(self._address, self.transport)
        path = self.url.partition(b"?")[0].decode("latin-1")
        is_refused = self._is_extra and self._open.is_full and path not in PROBES
        # The parent refuses a request at this number of connections.
        self.limit_concurrency, before = 0 if is_refused else None, self.cycle
        super().on_headers_complete()
        if is_refused and self.cycle is not before and self.cycle is not None:
            self.cycle.default_headers = [*self.cycle.default_headers, _RETRY_AFTER]

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it has arrived."""
        self._peer.answered = self.loop.time()
        if not self.pipeline:
            self._open.wait(self._address, self.transport)
        super().on_response_complete()

    def on_message_complete(self) -> None:
        """Prepare for the head of the next request."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(_HEAD_TIMEOUT_SECS, self._close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        if self._in_head and not self.transport.is_closing():
            self.transport.close()
