"""HTTP/1.1 with a limit on the head of a request, which uvicorn lacks.

It subclasses a private class of uvicorn; see ADR 0028.
"""

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

#: Maximum size of request line and headers together.
MAX_HEAD_BYTES = 64 * 1024
_HEAD_TIMEOUT_SECS = 30.0
_RETRY_AFTER = (b"retry-after", b"5")


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose request head is too long, or takes too long to arrive.

    Otherwise a client could fill the memory before it is authenticated. Answers at the limit of
    connections say when to try again.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer for the first request."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, error: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
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

    def on_headers_complete(self) -> None:
        """Stop the timer: the body has limits of its own."""
        self._in_head = False
        self._stop_timer()
        is_full, before = self._is_full(), self.cycle
        super().on_headers_complete()
        if is_full and self.cycle is not before and self.cycle is not None:
            self.cycle.default_headers = [*self.cycle.default_headers, _RETRY_AFTER]

    def _is_full(self) -> bool:
        """Return whether uvicorn refuses the request, by the condition that it uses."""
        limit = self.limit_concurrency
        return limit is not None and max(len(self.connections), len(self.tasks)) >= limit

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
