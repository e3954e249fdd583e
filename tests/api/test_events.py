"""Event streams: each reader gets every event once, whenever it connects and however slow it is."""

import asyncio
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from api import events as hub
from api.clients import auth
from api.errors import Problem
from api.settings import ApiSettings
from records import database
from records.service.owners import tokens
from records.tuning import events
from tests.api import make
from tests.api.conftest import Served, on_each_database, serving


def parse(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream, and check their framing."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if "data" in fields:
                event = json.loads(fields["data"])
                assert (str(event["sequence"]), event["kind"]) == (fields["id"], fields["event"])
                yield event
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


def read(served: Served, job_id: int, last: int, after: int = 0, **headers: str) -> list[int]:
    """Read a stream up to an event, and return the sequence numbers."""
    numbers = []
    at = f"{served.client.base_url}/api/v1/jobs/{job_id}/events?after={after}"
    with httpx.stream("GET", at, headers=headers, timeout=20, verify=False) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for event in parse(answer.iter_lines()):
            numbers.append(event["sequence"])
            if event["sequence"] >= last:
                break
    return numbers


def add(served: Served, job_id: int, count: int) -> None:
    """Append events to a job."""
    with served.sessions.begin() as session:
        for number in range(count):
            events.add_event(session, job_id, "status", {"phase": str(number), "task_id": None})


@on_each_database
def test_a_stream_begins_where_its_reader_stopped(served: Served) -> None:
    """A stream starts after Last-Event-ID, else after a parameter, else at the first event."""
    with served.sessions.begin() as session:
        job_id = make.job(session).id
    add(served, job_id, 4)

    assert read(served, job_id, 5) == [1, 2, 3, 4, 5]
    assert read(served, job_id, 5, after=3) == [4, 5]
    assert read(served, job_id, 5, after=1, **{"last-event-id": "4"}) == [5]


@pytest.mark.parametrize("number", ["-1", "x", str(2**60), "1.5"])
def test_an_invalid_sequence_number_is_rejected(shared: Served, number: str) -> None:
    """An invalid number is rejected in the header and in the query."""
    with shared.sessions.begin() as session:
        job_id = make.job(session).id
    at = f"/api/v1/jobs/{job_id}/events"

    assert shared.client.get(at, headers={"last-event-id": number}).status_code == 422
    assert shared.client.get(at, params={"after": number}).status_code == 422


@on_each_database
def test_every_reader_gets_each_event_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers connect at any time during writes, with small pages and batches."""
    monkeypatch.setattr(hub, "_PAGE_SIZE", 7)
    monkeypatch.setattr(hub, "_MAX_RECENT_EVENTS", 20)
    monkeypatch.setattr(hub, "_POLL_INTERVAL_SECS", 0.02)
    with served.sessions.begin() as session:
        job_id = make.job(session).id
    last, sequences = 151, []

    def write() -> None:
        for _ in range(30):
            add(served, job_id, 5)
            time.sleep(0.02)

    def watch(delay: float) -> None:
        time.sleep(delay)
        sequences.append(read(served, job_id, last))

    threads = [threading.Thread(target=write)]
    threads += [threading.Thread(target=watch, args=(0.1 * number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sequences == [list(range(1, last + 1))] * 10


@pytest.mark.slow("40 s until buffers are full")
def test_a_reader_that_does_not_read_blocks_no_other(quick: ApiSettings) -> None:
    """A slow reader stops the stream for itself only, and resumes where it stopped."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            job_id = make.job(session).id
        where = (str(served.client.base_url.host), served.client.base_url.port or 0)
        with socket.create_connection(where, timeout=20) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(
                f"GET /api/v1/jobs/{job_id}/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
            )
            for _ in range(10):
                add(served, job_id, 1000)
            assert read(served, job_id, 10_001, after=9_000)[-1] == 10_001
            data = b""
            while b"id: 10001\n" not in data:
                data += slow.recv(2**16)
    numbers = [int(line[4:]) for line in data.split(b"\n") if line.startswith(b"id: ")]
    assert numbers == list(range(1, 10_002))


def test_a_stream_of_a_deleted_job_ends(quick: ApiSettings) -> None:
    """The stream of a deleted job ends and cannot be opened again."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            job_id = make.job(session).id
        at = f"{served.client.base_url}/api/v1/jobs/{job_id}"
        with httpx.stream("GET", f"{at}/events", timeout=20, verify=False) as answer:
            lines = answer.iter_lines()
            assert next(parse(lines))["sequence"] == 1
            served.client.post(f"{at}/cancel")
            served.client.delete(at)
            rest = [event["sequence"] for event in parse(lines)]
        assert rest in ([], [2])
        assert served.client.get(f"{at}/events").status_code == 404


def test_a_stream_without_events_sends_heartbeats(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats are comments, which browsers ignore."""
    monkeypatch.setattr(hub, "_HEARTBEAT_INTERVAL_SECS", 0.05)
    with serving(quick) as served:
        with served.sessions.begin() as session:
            job_id = make.job(session).id
        at = f"{served.client.base_url}/api/v1/jobs/{job_id}/events?after=1"
        with httpx.stream("GET", at, timeout=20, verify=False) as answer:
            beats = (line for line in answer.iter_lines() if line == ": heartbeat")
            # The stream has no end, so without three heartbeats the test runs into its time-out.
            assert len(list(itertools.islice(beats, 3))) == 3


def test_a_revoked_token_ends_a_stream(quick: ApiSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader connects again, and is refused."""
    monkeypatch.setattr(hub, "CHECK_INTERVAL_SECS", 0.2)
    monkeypatch.setattr(auth, "REMEMBER_SECS", 0.2)
    with serving(replace(quick, require_tokens=True)) as served:
        with served.sessions.begin() as session:
            _, secret = tokens.create_token(session, "a", ["read"])
            job_id = make.job(session, owner="a").id
        path, headers = f"/api/v1/jobs/{job_id}/events", {"authorization": f"Bearer {secret}"}
        with served.client.stream("GET", path, headers=headers) as answer:
            lines = answer.iter_lines()
            next(lines)
            with served.sessions.begin() as session:
                tokens.revoke_token(session, "a")
            list(lines)  # until the end, or the time-out of the client

        assert served.client.get(path, headers=headers).status_code == 401


def test_no_stream_opens_when_the_server_stops(migrated_sqlite: str) -> None:
    """One that is requested then is refused; its look at the database may end after the stop."""

    async def scenario() -> None:
        for is_late in (False, True):
            streams = hub.Hub(sessions)
            opening = asyncio.create_task(streams.open(job)) if is_late else None
            await asyncio.sleep(0)
            await streams.close()
            with pytest.raises(Problem, match="about to end"):
                await (opening or streams.open(job))

    engine = database.open_database(migrated_sqlite)
    sessions = database.sessions(engine)
    with sessions.begin() as session:
        job = make.job(session).id
    asyncio.run(scenario())
    engine.dispose()


def test_streams_end_when_the_server_stops(quick: ApiSettings) -> None:
    """Open streams do not keep the server running, and a reader can resume later."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            job_id = make.job(session).id
        at = f"{served.client.base_url}/api/v1/jobs/{job_id}/events"
        stream = httpx.stream("GET", at, timeout=20, verify=False)
        answer = stream.__enter__()
        lines = answer.iter_lines()
        assert next(parse(lines))["sequence"] == 1
    # Complete: the server ended the answer instead of cutting it off.
    assert list(parse(lines)) == []
    assert answer.is_stream_consumed
    stream.__exit__(None, None, None)
