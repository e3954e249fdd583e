"""A network that loses packets and refuses nothing: connections are given up within seconds."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from sqlalchemy import exc, make_url, text

from records import database
from tests.records.conftest import postgres, postgres_url

__all__ = ["postgres", "postgres_url"]

_NAME = f"tuner{os.getpid() % 10_000}"
_HERE, _THERE = "10.213.77.1", "10.213.77.2"
_PORT = 5432
# Passes bytes from a port within the namespace on to the socket file of the server.
_FORWARD = """
import asyncio, sys

async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def serve(reader, writer):
    inner, out = await asyncio.open_unix_connection(sys.argv[3])
    await asyncio.gather(copy(reader, out), copy(inner, writer), return_exceptions=True)

async def main():
    async with await asyncio.start_server(serve, sys.argv[1], int(sys.argv[2])) as server:
        print("ready", flush=True)
        await server.serve_forever()

asyncio.run(main())
"""


@dataclass(frozen=True)
class Network:
    """A link to a namespace in which PostgreSQL listens."""

    url: str

    def lose_packets(self) -> None:
        """Drop every answer on its way back: no reset, no error, silence."""
        _run("ip", "netns", "exec", _NAME, "ip", "route", "add", "blackhole", f"{_HERE}/32")

    def mend(self) -> None:
        """Deliver packets again."""
        _run("ip", "netns", "exec", _NAME, "ip", "route", "del", "blackhole", f"{_HERE}/32")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def network(postgres_url: str) -> Iterator[Network]:
    """PostgreSQL behind a link of its own; needs root."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2")
    try:
        _run("ip", "netns", "add", _NAME)
    except subprocess.CalledProcessError:
        pytest.skip("needs the right to create network namespaces")
    parsed = make_url(postgres_url)
    socket = f"{parsed.query['host']}/.s.PGSQL.5432"
    forwarder = None
    try:
        _run("ip", "link", "add", f"{_NAME}a", "type", "veth", "peer", f"{_NAME}b", "netns", _NAME)
        _run("ip", "addr", "add", f"{_HERE}/30", "dev", f"{_NAME}a")
        _run("ip", "link", "set", f"{_NAME}a", "up")
        inside = ("ip", "netns", "exec", _NAME)
        _run(*inside, "ip", "addr", "add", f"{_THERE}/30", "dev", f"{_NAME}b")
        _run(*inside, "ip", "link", "set", f"{_NAME}b", "up")
        forwarder = subprocess.Popen(
            [*inside, sys.executable, "-c", _FORWARD, _THERE, str(_PORT), socket],
            stdout=subprocess.PIPE,
        )
        assert forwarder.stdout is not None
        assert forwarder.stdout.readline() == b"ready\n"
        yield Network(f"postgresql://postgres@{_THERE}:{_PORT}/{parsed.database}")
    finally:
        if forwarder is not None:
            forwarder.kill()
            forwarder.communicate()
        _run("ip", "netns", "del", _NAME)


@pytest.mark.guards_data
@pytest.mark.slow("15 s without an answer")
@pytest.mark.parametrize("waits", [False, True], ids=["sends", "waits for an answer"])
def test_lost_packets_are_noticed_within_half_a_minute(network: Network, waits: bool) -> None:
    """A commit and a pending answer fail, and a new connection works once packets arrive."""
    engine = database.open_database(network.url)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        if not waits:
            network.lose_packets()
        started = time.monotonic()
        with pytest.raises(exc.OperationalError):
            _ask(network, connection, waits=waits)
        secs = time.monotonic() - started
    network.mend()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar() == 1
    engine.dispose()

    assert 5.0 < secs < 30.0


def _ask(network: Network, connection: object, *, waits: bool) -> None:
    """Send a statement; with ``waits`` packets are lost after it has arrived."""
    assert hasattr(connection, "execute")
    if not waits:
        connection.execute(text("SELECT 2"))
        return
    import threading

    threading.Timer(0.5, network.lose_packets).start()
    connection.execute(text("SELECT pg_sleep(60)"))
