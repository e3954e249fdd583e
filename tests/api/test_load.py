"""The service under load: every request is answered, also beside hundreds of others."""

import asyncio
import hashlib
import importlib
import pkgutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from api import routes, waiting, web
from api.dependencies import _reader, _settings, _state, _writer
from api.load.capacity import capacity_of
from api.settings import ApiSettings
from records.service.owners import audit, tokens
from tests.api import make
from tests.api.conftest import Served, on_each_database, serving
from tests.waiting import wait_for
from tuner.executors.remote import wire
from tuner.queries import jobs as job_queries

_N_CLIENTS = 60
# Seconds until a request counts as lost. A freeze lasts for longer.
_LOST_SECS = 90.0


def _asked(job: int) -> list[tuple[str, str, dict[str, int] | None]]:
    """Return requests of all kinds: lists, a job, tables, pages, metrics and changes."""
    at = f"/api/v1/jobs/{job}"
    return [
        ("GET", "/api/v1/jobs", None),
        ("GET", "/api/v1/records/list", None),
        ("GET", "/api/v1/records/best", None),
        ("GET", "/api/v1/devices", None),
        ("GET", at, None),
        ("GET", f"{at}/picks", None),
        ("GET", f"{at}/recording", None),
        ("GET", "/metrics", None),
        ("GET", "/", None),
        ("GET", f"/jobs/{job}", None),
        ("GET", f"/compare?a={job}&b={job}", None),
        ("POST", f"{at}/priority", {"priority": 1}),
    ]


@asynccontextmanager
async def _client(served: Served, secret: str) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    headers = {"authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(
        base_url=served.client.base_url,
        headers=headers,
        limits=limits,
        timeout=_LOST_SECS,
        verify=False,
    ) as client:
        yield client


def _token(served: Served, name: str) -> str:
    with served.sessions.begin() as session:
        return tokens.create_token(session, name, ["admin"])[1]


@on_each_database
def test_many_clients_on_all_kinds_of_routes_are_answered(settings: ApiSettings) -> None:
    """A hundred connections at a time get no 503, and neither does another client."""
    with serving(replace(settings, require_tokens=True)) as served:
        with served.sessions.begin() as session:
            job = make.tuned(session)
        secrets = [_token(served, name) for name in ("crowd", "other")]

        async def ask() -> tuple[list[int], list[int]]:
            async with _client(served, secrets[0]) as crowd, _client(served, secrets[1]) as other:
                requests = [
                    crowd.request(method, path, json=body)
                    for number in range(2 * _N_CLIENTS)
                    for method, path, body in [_asked(job)[number % len(_asked(job))]]
                ]
                crowded = asyncio.gather(*requests)
                lone = [(await other.get("/api/v1/jobs")).status_code for _ in range(5)]
                return [answer.status_code for answer in await crowded], lone

        crowd, lone = asyncio.run(ask())

    assert set(crowd) == {200}
    assert set(lone) == {200}


@contextmanager
def _held_lists(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let every list of jobs wait until the end of the block; yield a growing list of them."""
    started: list[int] = []
    release, real = threading.Event(), job_queries.list_jobs

    def held(*args: object, **kwargs: object) -> object:
        started.append(1)
        assert release.wait(_LOST_SECS)
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(job_queries, "list_jobs", held)
    try:
        yield started
    finally:
        release.set()


def _send(served: Served, head: str) -> socket.socket:
    """Send text on a connection of its own, and leave that open."""
    url = served.client.base_url
    connection = socket.create_connection((str(url.host), url.port or 0), timeout=_LOST_SECS)
    connection.sendall(head.encode())
    return connection


def _list_jobs(agent: str, limit: int = 50) -> str:
    return _get(f"/api/v1/jobs?limit={limit}", agent)


def _get(path: str, agent: str = "crowd") -> str:
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: {agent}\r\n\r\n"


def test_a_client_that_leaves_gives_its_turn_back(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that wait are dropped with their connections, and reach no database."""
    n_readers = capacity_of(quick.tuner.database).n_readers
    with serving(quick) as served:
        with _held_lists(monkeypatch) as started:
            with ExitStack() as stack:
                for number in range(40):
                    stack.enter_context(_send(served, _list_jobs("crowd", number + 1)))
                wait_for(lambda: len(started) == n_readers)
                # Their heads have been read before that of a later connection.
                assert httpx.get(served.client.base_url.join("/healthz"), verify=False).is_success
            assert httpx.get(served.client.base_url.join("/healthz"), verify=False).is_success
        # Slots go to both clients in turn, so requests that still waited would be served by now.
        answers = [served.client.get("/api/v1/targets") for _ in range(10)]

    assert all(answer.is_success for answer in answers)
    assert len(started) == n_readers


def test_equal_requests_of_an_address_that_wait_take_as_long_as_one(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on connections of their own; each is a line of the metrics."""
    n_readers, n_clients = capacity_of(quick.tuner.database).n_readers, 100
    counted = f'route="/api/v1/jobs",status="200"}} {n_clients}.0'
    with serving(quick) as served, ExitStack() as stack:
        with _held_lists(monkeypatch) as started:
            crowd = [
                stack.enter_context(_send(served, _list_jobs("crowd"))) for _ in range(n_clients)
            ]
            wait_for(lambda: len(started) == n_readers)
            # Their heads have been read before that of a later connection.
            assert httpx.get(served.client.base_url.join("/healthz"), verify=False).is_success
        answers = [connection.recv(12) for connection in crowd]
        metrics = served.client.get("/metrics").text

    assert answers == [b"HTTP/1.1 200"] * n_clients
    assert len(started) <= n_readers + 2
    assert counted in metrics


def test_equal_requests_that_count_each_are_served_each(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each download is in the audit log, and each wait for a job begins at once."""
    n_readers, n_clients = capacity_of(quick.tuner.database).n_readers, 10
    n_waiting, until_news = 0, waiting._until_news

    async def noted(*args: Any) -> None:
        nonlocal n_waiting
        n_waiting += 1
        await until_news(*args)

    monkeypatch.setattr(waiting, "_until_news", noted)
    with serving(quick) as served, ExitStack() as stack:
        with served.sessions.begin() as session:
            job = make.tuned(session)
            content = b"library"
            digest = hashlib.sha256(content).hexdigest()
            make.built(session, job, served.data_dir / "archives", content, digest)
            active = make.job(session, "s1").id
        with _held_lists(monkeypatch) as started:
            for number in range(n_readers):
                stack.enter_context(_send(served, _list_jobs("crowd", number + 1)))
            wait_for(lambda: len(started) == n_readers)
            downloads, waits = (
                [stack.enter_context(_send(served, _get(path))) for _ in range(n_clients)]
                for path in (f"/api/v1/jobs/{job}/library", f"/api/v1/jobs/{active}?wait=60")
            )
            # Their heads have been read before that of a later connection.
            assert httpx.get(served.client.base_url.join("/healthz"), verify=False).is_success
        answers = [connection.recv(12) for connection in downloads]
        wait_for(lambda: n_waiting == len(waits))
        with served.sessions() as session:
            actions = [row.action for row in audit.actions(session, job_id=job)]

    assert answers == [b"HTTP/1.1 200"] * n_clients
    assert actions == ["download"] * n_clients


def test_probes_answer_while_all_connections_are_at_work(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit other requests get 503 and a time to wait, until one has its answer."""
    with serving(replace(quick, max_connections=8)) as served, ExitStack() as stack:
        served.client.close()
        base = served.client.base_url
        with _held_lists(monkeypatch) as started:
            for number in range(8):
                stack.enter_context(_send(served, _list_jobs(f"client {number}")))
            wait_for(lambda: len(started) >= 4)
            probes = [
                httpx.get(base.join(path), timeout=_LOST_SECS, verify=False)
                for path in ("/healthz", "/readyz")
                for _ in range(10)
            ]
            refused = httpx.get(base.join("/api/v1/targets"), timeout=_LOST_SECS, verify=False)
        wait_for(lambda: httpx.get(base.join("/api/v1/targets"), verify=False).is_success)

    assert {answer.status_code for answer in probes} == {200}
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")


def test_half_sent_heads_keep_no_client_out(quick: ApiSettings) -> None:
    """One address holds a share of the connections with them; the oldest are closed."""
    with serving(replace(quick, max_connections=40)) as served, ExitStack() as stack:
        served.client.close()
        base = served.client.base_url
        heads = [
            stack.enter_context(_send(served, "GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"))
            for _ in range(200)
        ]
        answers = [
            httpx.get(base.join(path), timeout=_LOST_SECS, verify=False)
            for path in ("/healthz", "/readyz", "/api/v1/jobs")
        ]

        def n_open() -> int:
            return sum(not _is_closed(head) for head in heads)

        wait_for(lambda: n_open() <= 10)
        heads[-1].sendall(b"\r\n")
        last = heads[-1].recv(12)

    assert [answer.status_code for answer in answers] == [200] * 3
    assert last == b"HTTP/1.1 200"


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the server closed a connection on which it sent nothing."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        connection.settimeout(_LOST_SECS)


def test_idle_connections_make_room(quick: ApiSettings) -> None:
    """At the limit the oldest connection without a request is closed for a new one."""
    with serving(replace(quick, max_connections=3)) as served:
        url = served.client.base_url
        served.client.close()
        clients = [httpx.Client(base_url=url, timeout=_LOST_SECS, verify=False) for _ in range(12)]
        statuses = [client.get("/api/v1/jobs").status_code for client in clients]
        for client in clients:
            client.close()

    assert statuses == [200] * 12


@pytest.mark.parametrize("path", ["jobs/1/events", f"remote/files/{'a' * 64}"])
def test_a_client_holds_a_share_of_the_streams(quick: ApiSettings, path: str) -> None:
    """The next stream of a token gets 429 and a time to wait, and other tokens get theirs."""
    settings = replace(quick, max_connections=8, require_tokens=True)
    with serving(settings) as served, ExitStack() as stack:
        with served.sessions.begin() as session:
            make.job(session)
        file = served.data_dir / wire.FOLDER / ("a" * 64)
        file.parent.mkdir(parents=True)
        with file.open("wb") as stream:
            stream.truncate(1 << 30)  # more than the buffers of a connection
        ada, bob, eve = (
            {"authorization": f"Bearer {_token(served, name)}"} for name in ("ada", "bob", "eve")
        )

        def start(headers: dict[str, str]) -> httpx.Response:
            client = stack.enter_context(
                httpx.Client(base_url=served.client.base_url, timeout=20, verify=False)
            )
            return stack.enter_context(client.stream("GET", f"/api/v1/{path}", headers=headers))

        own = [start(ada) for _ in range(2)]
        refused = start(ada)
        others = [start(bob) for _ in range(2)]
        beyond = start(eve)
        own[0].close()
        wait_for(lambda: start(ada).status_code == 200)

    assert [stream.status_code for stream in (*own, *others)] == [200] * 4
    assert [stream.status_code for stream in (refused, beyond)] == [429] * 2
    assert int(refused.headers["retry-after"]) > 0


def test_bodies_that_do_not_arrive_keep_no_client_out(quick: ApiSettings) -> None:
    """One address holds a share of the connections with bodies that are arriving."""
    head = (
        "POST /api/v1/jobs/1/priority HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        "content-type: application/json\r\ncontent-length: 20\r\n\r\n{"
    )
    with serving(replace(quick, max_connections=8)) as served, ExitStack() as stack:

        def is_refused() -> bool:
            # A body is refused itself if that of the other connection arrives before it.
            stack.enter_context(_send(served, head))
            return served.client.post("/jobs", content=b"x").status_code == 429

        wait_for(is_refused)
        answer = served.client.get("/api/v1/jobs")

    assert answer.status_code == 200


def _routes() -> Iterator[APIRoute]:
    for package in (routes, web):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            router = getattr(importlib.import_module(module.name), "router", None)
            yield from (
                each for each in getattr(router, "routes", ()) if isinstance(each, APIRoute)
            )


def test_every_route_looks_its_sender_up_before_it_takes_a_slot() -> None:
    """A look-up needs a slot itself, and a request that holds one must not wait for another."""
    n_checked = 0
    for route in _routes():
        calls = [dependency.call for dependency in route.dependant.dependencies]
        if _reader in calls or _writer in calls:
            first = min(calls.index(each) for each in (_reader, _writer) if each in calls)
            assert set(calls[first:]) <= {_reader, _writer, _state, _settings}, route.path
            n_checked += 1

    assert n_checked > 20
