"""Faulty connections on loopback: a proxy that cuts them, and a server with arbitrary answers."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_CHUNK = 4096


@dataclass
class Proxy:
    """A proxy that forwards connections to a port, and cuts some of them.

    Attributes:
        target: Port to forward to.
        cuts: Bytes of answers after which a connection is cut, one entry for each connection in
            order; connections beyond the list are not cut.
        requests: First chunk of each connection.
    """

    target: int
    cuts: list[int] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        """URL of the proxy."""
        return f"http://127.0.0.1:{self.port}"

    def serve(self, listener: socket.socket) -> None:
        """Accept connections until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                theirs, _ = listener.accept()
                left = self.cuts.pop(0) if self.cuts else None
                ours = socket.create_connection(("127.0.0.1", self.target))
                for args in ((theirs, ours, None, True), (ours, theirs, left, False)):
                    threading.Thread(target=self._pump, args=args, daemon=True).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, left: int | None, keeps: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK):
                if keeps:
                    self.requests.append(chunk)
                if left is not None:
                    chunk, left = chunk[:left], left - len(chunk)
                sink.sendall(chunk)
                if left is not None and left <= 0:
                    break
        for connection in (source, sink):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


@contextlib.contextmanager
def proxied(target: int, *cuts: int) -> Iterator[Proxy]:
    """Run a proxy."""
    proxy = Proxy(target, list(cuts))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy.port = listener.getsockname()[1]
        threading.Thread(target=proxy.serve, args=(listener,), daemon=True).start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def answering(respond: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a server whose connections a function answers, and return its URL."""

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    respond(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def answer(connection: socket.socket, status: str, body: bytes, *headers: str) -> None:
    """Read the head of a request, and answer it."""
    head = b""
    while b"\r\n\r\n" not in head:
        chunk = connection.recv(_CHUNK)
        if not chunk:
            return
        head += chunk
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
