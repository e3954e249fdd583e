"""Fake servers, registered at a real tracker and never called."""

import json
import socket
import struct

from tuner.devices.runners.addresses import RpcAddress

_PUT = 3


def put(address: RpcAddress, port: int) -> socket.socket:
    """Register a server as TVM's do, and return the connection that keeps it registered."""
    connection = socket.create_connection((address.host, address.port))
    connection.sendall(struct.pack("<i", 0x2F271))
    connection.recv(4)
    text = json.dumps([_PUT, address.key, [port, f"{address.key}:{port}"]]).encode()
    connection.sendall(struct.pack("<i", len(text)) + text)
    return connection
