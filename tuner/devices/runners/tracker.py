"""Client of TVM's RPC tracker: registered servers, and leases of them.

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
_CONNECT_TIMEOUT_SECS = 5.0
_MAX_BYTES = 2**24
# A tracker whose host vanished never answers; the system probes it and gives up after a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}

# Host and port.
Server = tuple[str, int]


@dataclass(frozen=True)
class Lease:
    """Right to one session on a server, if it begins within seconds.

    Attributes:
        host: Host that the server listens on.
        port: Port that the server listens on.
        match_key: Key that the server expects in the session.
    """

    host: str
    port: int
    match_key: str


class Tracker:
    """Connection to a tracker: one call at a time, which another thread can end by closing.

    Raises:
        DeviceLost: By every method, if the tracker cannot be reached.
    """

    def __init__(self, address: RpcAddress) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    def servers(self) -> list[Server]:
        """Return every server that is registered under the key, working or not."""
        with self._connected(_CONNECT_TIMEOUT_SECS) as connection:
            _, summary = _call(connection, [_SUMMARY])
            key = f"server:{self._address.key}"
            infos = [info for info in summary["server_info"] if info.get("key") == key]
            return sorted((str(info["addr"][0]), int(info["addr"][1])) for info in infos)

    def request(self) -> Lease:
        """Wait without limit for a lease; the tracker serves requests by priority."""
        self.close()  # another tracker may have replaced that of the last connection
        with self._connected(None) as connection:
            key, priority = self._address.key, self._address.priority
            code, lease = _call(connection, [_REQUEST, key, "", priority])
            if code != _SUCCESS:
                raise OSError(f"the tracker answered with code {code}")
            return Lease(str(lease[0]), int(lease[1]), str(lease[2]))

    def close(self) -> None:
        """Disconnect; a call that waits in another thread raises DeviceLost."""
        connection, self._socket = self._socket, None
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)  # wakes a receiver, unlike close()
            except OSError:
                pass
            finally:
                connection.close()

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
            raise DeviceLost(f"cannot reach the RPC tracker at {tracker}: {error}") from error


def release(lease: Lease) -> None:
    """Open a session and end it at once, so that the server registers itself again.

    Without a session it does so after six seconds only. The frames that end a session are those of
    ``rpc_endpoint.cc`` of TVM.
    """
    key = f"client:{lease.match_key}".encode()
    with (
        suppress(OSError),  # a server that is offline holds no lease
        socket.create_connection((lease.host, lease.port), _CONNECT_TIMEOUT_SECS) as connection,
    ):
        connection.sendall(struct.pack("<ii", _RPC_MAGIC, len(key)) + key)
        _, n_bytes = struct.unpack("<ii", _receive(connection, 8))
        _receive(connection, min(n_bytes, _MAX_BYTES))
        connection.sendall(struct.pack("<Qi", 4, _SHUTDOWN))


def _connect(address: RpcAddress) -> socket.socket:
    connection = socket.create_connection((address.host, address.port), _CONNECT_TIMEOUT_SECS)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connection.sendall(_MAGIC)
        if _receive(connection, len(_MAGIC)) != _MAGIC:
            raise OSError("it is not an RPC tracker")
    except OSError:
        connection.close()
        raise
    return connection


def _call(connection: socket.socket, request: list[Any]) -> Any:
    text = json.dumps(request).encode()
    connection.sendall(struct.pack("<i", len(text)) + text)
    (n_bytes,) = struct.unpack("<i", _receive(connection, 4))
    if not 0 < n_bytes <= _MAX_BYTES:
        raise OSError(f"the tracker announced {n_bytes} bytes")
    return json.loads(_receive(connection, n_bytes))


def _receive(connection: socket.socket, n_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < n_bytes:
        # The tracker sends the text once the length is acknowledged, which else takes 40 ms.
        if hasattr(socket, "TCP_QUICKACK"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        part = connection.recv(n_bytes - len(received))
        if not part:
            raise OSError("it closed the connection")
        received += part
    return bytes(received)
