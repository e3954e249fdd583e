"""HTTP/1.1 with a bound on the head of a request, which the server itself does not have."""

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

#: Request line and headers, together.
MOST_HEAD_BYTES = 64 * 1024
_HEAD_SECS = 30.0


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection whose request has a head that is too long, or takes too long to come.

    Neither is read, so that nobody fills the memory before it is known who they are.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a first request."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, error: Exception | None) -> None:
        """Stop to wait."""
        self._stop_waiting()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """Take what arrived, as long as the head of the request is not too long."""
        if self._in_head:
            if not self._head_bytes:
                self._wait()
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MOST_HEAD_BYTES:
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Go on with the body, which has a limit of its own."""
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Be ready for the next head."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _wait(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(_HEAD_SECS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self._in_head and not self.transport.is_closing():
            self.transport.close()
