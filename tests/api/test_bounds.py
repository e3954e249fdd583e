"""No reader keeps the database, a thread or the probes from the others."""

import asyncio
import io
import socket
import threading
from types import SimpleNamespace
from typing import IO

import pytest
from fastapi import FastAPI
from sqlalchemy import event
from starlette.types import Receive, Scope, Send

from api.clients.caps import Cap
from api.clients.limits import limited
from api.errors import Problem
from api.load import exports, readiness
from api.load.fair_semaphore import SENDER, Sender
from api.middleware import BodyLimits
from api.settings import ApiSettings
from records import measure_records
from records.logs import measure_log
from tests.api.conftest import Served, serving
from tests.records import make as rows

AT = "/api/v1/records"


def store_records(served: Served, n_records: int) -> None:
    """Store failed trials of 20 kB each."""
    with served.sessions.begin() as session:
        task = rows.task(session)
        for number in range(n_records):
            measure_records.add_record(
                session, rows.failed(task, f"t{number}", error_text="x" * 20_000)
            )


def test_a_reader_that_stops_reading_delays_no_other(quick: ApiSettings) -> None:
    """While an export waits for its reader, others and probes are served, and few may start."""
    with serving(quick) as served:
        store_records(served, 400)
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect((str(served.client.base_url.host), served.client.base_url.port or 0))
            stalled.sendall(f"GET {AT} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            assert stalled.recv(12) == b"HTTP/1.1 200"
            refused = [served.client.get(AT) for _ in range(2)]
            statuses = [served.client.get(path).status_code for path in ("/readyz", f"{AT}/list")]

    assert [answer.status_code for answer in refused] == [429] * 2
    assert refused[0].json()["type"].endswith("busy")
    assert int(refused[0].headers["retry-after"]) > 0
    assert statuses == [200, 200]


def test_an_export_holds_no_connection_while_its_reader_waits(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are read in transactions of their own, which end before a byte is passed on."""
    monkeypatch.setattr(exports, "_CHUNK_CHARS", 1000)
    monkeypatch.setattr(exports, "_PAGE", 10)
    with serving(quick) as served:
        store_records(served, 35)
        engine = served.sessions.kw["bind"]
        n_open = 0

        def count(change: int) -> None:
            nonlocal n_open
            n_open += change

        event.listen(engine, "checkout", lambda *_: count(1))
        event.listen(engine, "checkin", lambda *_: count(-1))
        response = exports.ExportResponse(served.sessions, Cap("exports", 1, 1), "ada", None)

        async def read() -> tuple[int, bytes]:
            n_held, content = -1, b""
            async for chunk in response.body_iterator:
                if n_held < 0:
                    await asyncio.sleep(0.2)  # the queue between thread and reader is full
                    n_held = n_open
                assert isinstance(chunk, bytes)
                content += chunk
            return n_held, content

        n_held, content = asyncio.run(read())
        with served.sessions() as session:
            whole = io.StringIO()
            assert measure_log.export(session, whole) == 35

    assert n_held == 0
    assert content.decode() == whole.getvalue()


def test_an_export_leaves_out_what_is_stored_after_its_start(quick: ApiSettings) -> None:
    """It ends although records keep coming."""
    with serving(quick) as served:
        store_records(served, 3)
        export, stream = measure_log.Export(), io.StringIO()
        with served.sessions() as session:
            assert export.write_page(session, stream, 2)
        with served.sessions.begin() as session:
            measure_records.add_record(session, rows.failed(rows.task(session), "late"))
        with served.sessions() as session:
            assert not export.write_page(session, stream, 2)

    assert export.n_records == 3


def test_a_cap_is_for_each_client_and_for_all() -> None:
    """A client may hold one more once its last one ended, however it ended."""
    cap = Cap("exports", 1, 2)
    with cap.taken("ada"):
        with pytest.raises(Problem), cap.taken("ada"):
            pass
        with cap.taken("bob"), pytest.raises(Problem), cap.taken("eve"):
            pass
        with cap.taken("eve"):
            pass
    with pytest.raises(ValueError, match="failed"), cap.taken("ada"):
        raise ValueError("failed")
    with cap.taken("ada"):
        pass


def test_an_export_ends_at_its_deadline() -> None:
    """A reader that is too slow in total is cut off, although it never pauses for long."""

    def write(stream: IO[str]) -> None:
        while True:
            stream.write("x" * 2**18)

    async def read() -> None:
        async for _ in exports.lines_of(write, 0.2):
            await asyncio.sleep(0.05)

    with pytest.raises(TimeoutError):
        asyncio.run(read())


def test_a_body_may_not_trickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps no request open for ever."""
    monkeypatch.setattr("api.clients.limits._IDLE_TIMEOUT_SECS", 0.1)

    async def receive() -> dict[str, object]:
        await asyncio.sleep(0.03)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def trickle() -> None:
        counted = limited(receive, None, 1000)
        for _ in range(100):
            await counted()

    with pytest.raises(Problem, match="arrived") as refused:
        asyncio.run(trickle())
    assert refused.value.slug == "too-slow"


@pytest.mark.parametrize("last", [{"body": b"{}", "more_body": False}, None])
def test_a_body_that_has_arrived_counts_no_more(last: dict[str, object] | None) -> None:
    """Nor does one that broke off, however long its request takes then."""
    bodies, rooms = Cap("arriving bodies", 1, 1), []
    messages: list[dict[str, object]] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"} if last is None else {"type": "http.request", **last},
    ]

    async def receive() -> dict[str, object]:
        return messages.pop(0)

    async def send(message: object) -> None:
        raise AssertionError(message)

    async def serve(_scope: Scope, receive: Receive, _send: Send) -> None:
        for _ in range(2):
            await receive()
            rooms.append(bodies.has_room("ada"))

    app = FastAPI()
    app.state.service = SimpleNamespace(
        settings=SimpleNamespace(max_upload_bytes=10), bodies=bodies
    )
    headers = [(b"content-length", b"3")]
    scope = {"type": "http", "method": "POST", "path": "/x", "headers": headers, "app": app}

    async def scenario() -> None:
        SENDER.set(Sender("ada"))
        await BodyLimits(serve)(scope, receive, send)

    asyncio.run(scenario())

    assert rooms == [False, True]
    assert bodies.has_room("ada")


def test_readiness_has_a_connection_of_its_own(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers while all other connections are in use, and fails soon if the database hangs."""
    with serving(quick) as served:
        assert served.client.get("/readyz").status_code == 200
        hangs = threading.Event()
        monkeypatch.setattr(readiness.Readiness, "_ask", lambda _: hangs.wait(30))
        monkeypatch.setattr(readiness, "_TIMEOUT_SECS", 0.1)
        statuses = [served.client.get("/readyz").status_code for _ in range(2)]
        alive = served.client.get("/healthz").status_code
        hangs.set()

    assert statuses == [503, 503]
    assert alive == 200
