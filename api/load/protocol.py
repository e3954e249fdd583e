"""HTTP/1.1 with limits on heads of requests, on readers and on connections, which uvicorn lacks.

It subclasses a private class of uvicorn; see ADR 0028.
"""

import fcntl
import struct
import termios
from typing import TYPE_CHECKING, Any, cast

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.errors import Problem, respond
from api.load.fair_semaphore import PEER, Peer
from api.settings import is_loopback

if TYPE_CHECKING:
    import asyncio

    from api.load.connections import Connections
    from api.load.turns import Turns

#: Maximum size of request line and headers together, and of what else a request has but a body.
MAX_HEAD_BYTES = 64 * 1024
_HEAD_TIMEOUT_SECS = 30.0
# An answer ends if its client takes less of it within this time: 1 KiB a second.
_READ_TIMEOUT_SECS = 30.0
_MIN_READ_BYTES = 30 * 1024
# Requests that may wait for the answer before theirs on one connection; common clients send none.
_MAX_PIPELINED = 4
_RETRY_AFTER_SECS = 5
_MAX_AGENT_CHARS = 100
#: Paths of probes, which are answered at any number of connections.
PROBES = ("/healthz", "/readyz")


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections of clients that send no head of a request, or read no answer, in time.

    Otherwise a client could fill the memory before it is authenticated, or keep others out. Beyond
    the limits of :class:`~api.load.connections.Connections`, which the state of the application
    has, only probes are served, and other answers say when to try again.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._n_unused_bytes = 0
        self._sender_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._peer = Peer()
        self._answered: RequestResponseCycle | None = None
        self._is_extra = False
        state = self.config.app.state  # type: ignore[union-attr]
        self._open: Connections = state.connections
        self._turns: Turns = state.turns
        self._client = ""

    def connection_made(self, transport: Any) -> None:
        """Start the timer for the first request."""
        super().connection_made(transport)
        # Writing pauses until the client has taken everything.
        transport.set_write_buffer_limits(high=0)
        self._open.open(self.client[0] if self.client else "", transport)
        self._is_extra = self._open.is_full
        self._turns.note_arrival()
        self._start_timer()

    def connection_lost(self, error: Exception | None) -> None:
        """Stop the timers, waiting for a slot, and the answer, also if other requests follow it."""
        self._stop_timer()
        self._open.close(self.transport)
        self._peer.leave()
        self._stop_answer()
        super().connection_lost(error)
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Pass data on, and close the connection if there is too much beside bodies."""
        if self._in_head and not self._n_unused_bytes:
            self._start_timer()
        self._n_unused_bytes += len(data)
        super().data_received(data)
        if self._n_unused_bytes > MAX_HEAD_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        """Give the request the peer, which orders those that wait for a slot."""
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._stop_answer()
            self.transport.abort()
            raise ConnectionAbortedError("too many requests wait on one connection")
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[PEER] = self._peer

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; those after a body are of no use."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the timer, because the body has limits of its own, and serve or refuse."""
        self._in_head = False
        self._stop_timer()
        self._open.work(self.transport)
        path = self.url.partition(b"?")[0].decode("latin-1")
        is_beyond = (self._is_extra and self._open.is_full) or self._open.is_crowded(self.transport)
        served = self.config.loaded_app
        self.app = cast("Any", _refuse) if is_beyond and path not in PROBES else served
        self._client = self._name_client()
        super().on_headers_complete()
        self._note_turn()

    def on_body(self, body: bytes) -> None:
        """Count nothing that belongs to a body."""
        self._n_unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Prepare for the head of the next request."""
        self._in_head, self._n_unused_bytes = True, 0
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it has arrived, or for the rest of this one."""
        self._peer.answered = self.loop.time()
        self._note_turn()
        if not self._in_head:
            self._start_timer()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait for the client to read, for as long as it goes on."""
        super().pause_writing()
        self._note_turn()
        self._await_reader(None)

    def resume_writing(self) -> None:
        """Go on once the client has read everything."""
        super().resume_writing()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
        self._note_turn()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start a request when its client has its turn."""
        self._answered = cycle
        if not self._open.is_behind_proxy:  # which sends requests of many clients on a connection
            self._peer.ask(self.loop.time())

        def start() -> None:
            if not self.transport.is_closing():
                super(BoundedProtocol, self)._start_asgi_task(cycle, app)

        # A client that probes may also send requests, or pass on requests of others.
        path = cycle.scope["path"]
        client = self._client + path * (path in PROBES)
        self._turns.add(client, start, is_hasty=self._peer.is_hasty)

    def _name_client(self) -> str:
        """Return the address of a client, with its program if it is one of this machine.

        Behind a trusted proxy it is the last one that the proxies name and that is none of them.
        """
        address = self.client[0] if self.client else ""
        # The middleware of uvicorn, which reads the headers once the request has started.
        proxies = getattr(self.config.loaded_app, "trusted_hosts", ())
        if address in proxies:
            named = (value for name, value in self.headers if name == b"x-forwarded-for")
            hops = b",".join(named).decode("latin-1").split(",")
            clients = (hop for each in reversed(hops) if (hop := each.strip()) not in proxies)
            address = next(clients, "") or address
        if not is_loopback(address):
            return address
        agents = (value for name, value in self.headers if name == b"user-agent")
        return f"{address} {next(agents, b'')[:_MAX_AGENT_CHARS]!r}"

    def _stop_answer(self) -> None:
        """Let the answer that is being sent end without sending more."""
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def _note_turn(self) -> None:
        """Count the connection as waiting while the next step is the client's."""
        is_answered = self.cycle is None or self.cycle.response_complete
        if is_answered or self.flow.write_paused:
            self._open.wait(self.transport)
        else:
            self._open.work(self.transport)

    def _await_reader(self, before: int | None) -> None:
        """Abort the connection unless enough was read since there were ``before`` bytes to read."""
        kernel = fcntl.ioctl(
            self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4)
        )
        n_bytes = self.transport.get_write_buffer_size() + struct.unpack("i", kernel)[0]
        if before is not None and n_bytes > before - _MIN_READ_BYTES:
            self.transport.abort()
        else:
            self._reader_timer = self.loop.call_later(
                _READ_TIMEOUT_SECS, self._await_reader, n_bytes
            )

    def _start_timer(self) -> None:
        self._stop_timer()
        self._sender_timer = self.loop.call_later(_HEAD_TIMEOUT_SECS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._sender_timer is not None:
            self._sender_timer.cancel()
            self._sender_timer = None


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer that there are too many connections."""
    headers = {"retry-after": str(_RETRY_AFTER_SECS), "connection": "close"}
    problem = Problem("crowded", "this service has too many connections", headers=headers)
    await respond(problem)(scope, receive, send)
