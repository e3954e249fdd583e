"""No client holds connections, memory or turns by what it does not send or does not read."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import httpx
import psutil
import pytest

from api.load import protocol
from api.load.connections import Connections
from api.settings import ApiSettings
from api.web import assets
from tests.api.conftest import Served, serving
from tests.waiting import wait_for

# More than buffers of the kernel take.
_LARGE = f"GET {assets.address('plotly.min.js')} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
_CHUNKED = (
    b"POST /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n"
)


@contextmanager
def connected(served: Served) -> Iterator[socket.socket]:
    """Open a connection with a small buffer, on which little is received before it is read."""
    url = served.client.base_url
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        connection.settimeout(60)
        connection.connect((str(url.host), url.port or 0))
        yield connection


def _is_served(connection: socket.socket) -> bool:
    """Return whether the server, which runs in this process, still has a connection open."""
    address = connection.getsockname()
    return any(each.raddr == address for each in psutil.Process().net_connections("tcp"))


def _received(connection: socket.socket) -> int:
    """Read to the end, and return the number of bytes."""
    n_bytes = 0
    try:
        while part := connection.recv(2**18):
            n_bytes += len(part)
    except ConnectionError:
        pass
    return n_bytes


def test_clients_that_read_nothing_keep_no_client_out(quick: ApiSettings) -> None:
    """They wait, as those do that send nothing; the oldest of too many are closed."""
    with serving(replace(quick, max_connections=12)) as served, ExitStack() as stack:
        served.client.close()
        base = served.client.base_url
        for _ in range(14):
            stack.enter_context(connected(served)).sendall(_LARGE * 3)
        # Those at work leave no room, and their turn comes when they have filled all buffers.
        wait_for(lambda: httpx.get(base.join("/api/v1/jobs"), timeout=60, verify=False).is_success)


def test_an_answer_that_nobody_reads_ends(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is closed after a time without progress."""
    monkeypatch.setattr(protocol, "_READ_TIMEOUT_SECS", 0.2)
    with serving(quick) as served, connected(served) as connection:
        connection.sendall(_LARGE * 3)
        assert connection.recv(12) == b"HTTP/1.1 200"
        wait_for(lambda: not _is_served(connection))
        assert served.client.get("/healthz").is_success


def test_an_answer_that_is_read_slowly_arrives(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take longer than the time-out, as long as the client goes on reading."""
    monkeypatch.setattr(protocol, "_READ_TIMEOUT_SECS", 0.05)
    monkeypatch.setattr(protocol, "_MIN_READ_BYTES", 0)
    with serving(quick) as served, connected(served) as connection:
        connection.sendall(_LARGE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert connection.recv(12) == b"HTTP/1.1 200"
        time.sleep(0.2)
        n_bytes = _received(connection)

    assert n_bytes > len(assets.load("plotly.min.js").plain)


@pytest.mark.parametrize(
    "sent",
    [
        _CHUNKED + b"0\r\n" + b"a: b\r\n" * 100_000,
        _CHUNKED + b"0\r\na: " + b"b" * 600_000,
        _CHUNKED + b"1;" + b"b" * 600_000,
        b"GET / HTTP/1.1\r\n\r\n" * 100_000,
    ],
    ids=["trailers", "trailer", "extension", "pipelined"],
)
def test_what_is_no_body_has_a_limit(quick: ApiSettings, sent: bytes) -> None:
    """A client that sends more beside a body, or many requests at once, is cut off."""
    with serving(quick) as served, connected(served) as connection:
        with pytest.raises(ConnectionError):  # noqa: PT012  either may be the first to notice
            connection.sendall(sent)
            while connection.recv(2**16):
                pass
            raise ConnectionResetError
        wait_for(lambda: not _is_served(connection))
        assert served.client.get("/healthz").is_success


def test_the_rest_of_a_refused_body_does_not_arrive_for_ever(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has its answer may not go on sending the request, byte by byte."""
    monkeypatch.setattr(protocol, "_HEAD_TIMEOUT_SECS", 0.3)
    head = b"POST /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000000\r\n\r\n"

    def is_open(connection: socket.socket) -> bool:
        try:
            connection.sendall(b"x")
        except ConnectionError:
            return False
        return True

    with serving(quick) as served, connected(served) as connection:
        connection.sendall(head)
        assert connection.recv(12) == b"HTTP/1.1 405"
        wait_for(lambda: not is_open(connection))


def test_a_client_that_leaves_before_its_answers_is_no_error(
    quick: ApiSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer on its way ends, although more requests have arrived behind it."""
    with serving(quick) as served:
        for _ in range(5):
            with connected(served) as connection:
                connection.sendall(_LARGE * 3)
                assert connection.recv(12) == b"HTTP/1.1 200"
        assert served.client.get("/healthz").is_success

    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


class _Transport(asyncio.Transport):
    def __init__(self, ended: list[asyncio.Transport]) -> None:
        super().__init__()
        self._ended = ended

    def abort(self) -> None:
        self._ended.append(self)


@pytest.mark.parametrize("is_behind_proxy", [False, True])
def test_one_address_leaves_a_quarter_of_the_connections_at_work(*, is_behind_proxy: bool) -> None:
    """Its next request is refused; the address of a proxy stands for many."""

    async def scenario() -> None:
        ended: list[asyncio.Transport] = []
        connections = Connections(8, is_behind_proxy)
        busy = [_Transport(ended) for _ in range(7)]
        for transport in busy:
            connections.open("10.0.0.1", transport)
            connections.work(transport)
        other = _Transport(ended)
        connections.open("10.0.0.2", other)
        connections.work(other)

        assert connections.is_crowded(busy[-1]) is not is_behind_proxy
        assert not connections.is_crowded(other)
        connections.wait(busy[0])
        assert not connections.is_crowded(busy[-1])
        connections.close(busy[1])
        connections.work(busy[0])
        assert not connections.is_crowded(busy[-1])
        assert ended == []

    asyncio.run(scenario())
