"""The client's side of TVM's RPC tracker: who is registered there, and who is lent to us.

A frame is its length and JSON; the requests are those of ``tvm/rpc/tracker.py``.
"""

import json
import socket
import struct
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tuner.devices.runners.addresses import RpcAddress
from tuner.errors import DeviceLost

_MAGIC = struct.pack("<i", 0x2F271)
_SUCCESS, _REQUEST, _SUMMARY = 0, 4, 6
_RPC_MAGIC, _SHUTDOWN = 0xFF271, 1
_CONNECT_SECS = 5.0
_MOST_BYTES = 2**24
# A tracker whose host is gone says nothing; the system asks it, and gives up after a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

# Host and port.
Server = tuple[str, int]


@dataclass(frozen=True)
class Lent:
    """A server that is ours for one session, if we use it soon.

    Attributes:
        host: Where it listens.
        port: Where it listens.
        match_key: What it wants to hear.
    """

    host: str
    port: int
    match_key: str


class Tracker:
    """A connection to a tracker; one call at a time, which another thread can cut short.

    Raises:
        DeviceLost: By every method, if there is no tracker at the address any more.
    """

    def __init__(self, address: RpcAddress) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    def servers(self) -> list[Server]:
        """Return every server under the key, whether it works or not."""
        with self._connected(_CONNECT_SECS) as connection:
            _, summary = _ask(connection, [_SUMMARY])
            wanted = f"server:{self._address.key}"
            infos = [info for info in summary["server_info"] if info.get("key") == wanted]
            return sorted((str(info["addr"][0]), int(info["addr"][1])) for info in infos)

    def request(self) -> Lent:
        """Wait for a server, by priority among all who wait, for as long as it takes."""
        self.close()  # the tracker of the last connection may be gone, and another one there
        with self._connected(None) as connection:
            key, priority = self._address.key, self._address.priority
            code, lent = _ask(connection, [_REQUEST, key, "", priority])
            if code != _SUCCESS:
                raise OSError(f"the tracker answered {code}")
            return Lent(str(lent[0]), int(lent[1]), str(lent[2]))

    def close(self) -> None:
        """Hang up; whoever waits in another thread gets DeviceLost."""
        connection, self._socket = self._socket, None
        if connection is not None:
            _hang_up(connection)

    @contextmanager
    def _connected(self, timeout_secs: float | None) -> Generator[socket.socket]:
        try:
            if self._socket is None:
                self._socket = _connect(self._address)
            connection = self._socket
            connection.settimeout(timeout_secs)
            yield connection
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            self.close()
            tracker = self._address.tracker
            raise DeviceLost(f"the RPC tracker at {tracker} is gone: {error}") from error


def give_back(lent: Lent) -> None:
    """Open a session and end it at once, so that the server registers itself anew.

    It would do so by itself, but only after six seconds. See ``rpc_endpoint.cc`` of TVM for what
    ends a session.
    """
    key = f"client:{lent.match_key}".encode()
    with (
        suppress(OSError),  # a server that is gone need not be given back
        socket.create_connection((lent.host, lent.port), _CONNECT_SECS) as connection,
    ):
        connection.sendall(struct.pack("<ii", _RPC_MAGIC, len(key)) + key)
        _, n_bytes = struct.unpack("<ii", _receive(connection, 8))
        _receive(connection, min(n_bytes, _MOST_BYTES))
        connection.sendall(struct.pack("<Qi", 4, _SHUTDOWN))


def _connect(address: RpcAddress) -> socket.socket:
    connection = socket.create_connection((address.host, address.port), _CONNECT_SECS)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connection.sendall(_MAGIC)
        if _receive(connection, len(_MAGIC)) != _MAGIC:
            raise OSError("it is no RPC tracker")
    except OSError:
        connection.close()
        raise
    return connection


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)  # wakes who receives, which closing does not
    except OSError:
        pass
    finally:
        connection.close()


def _ask(connection: socket.socket, question: list[Any]) -> Any:
    text = json.dumps(question).encode()
    connection.sendall(struct.pack("<i", len(text)) + text)
    (n_bytes,) = struct.unpack("<i", _receive(connection, 4))
    if not 0 < n_bytes <= _MOST_BYTES:
        raise OSError(f"the tracker announced {n_bytes} bytes")
    return json.loads(_receive(connection, n_bytes))


def _receive(connection: socket.socket, n_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < n_bytes:
        _acknowledge_at_once(connection)
        part = connection.recv(n_bytes - len(received))
        if not part:
            raise OSError("it hung up")
        received += part
    return bytes(received)


def _acknowledge_at_once(connection: socket.socket) -> None:
    """Save 40 ms an answer: the tracker sends a length, and its text once that is acknowledged."""
    if hasattr(socket, "TCP_QUICKACK"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
