"""Event streams: everybody sees every event once, whenever they come and however slow they are."""

import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from api import events as hub
from api.settings import ApiSettings
from records import events
from tests.api import make
from tests.api.conftest import Served, serving


def parse(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream, and check how they are framed."""
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
    """Read a stream until an event, and return the numbers seen."""
    numbers = []
    at = f"{served.client.base_url}/api/v1/jobs/{job_id}/events?after={after}"
    with httpx.stream("GET", at, headers=headers, timeout=20) as answer:
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


def test_a_stream_begins_where_its_reader_stopped(served: Served) -> None:
    """From the first event, from a parameter, or from Last-Event-ID, which wins."""
    with served.sessions.begin() as session:
        job_id = make.job(session).id
    add(served, job_id, 4)

    assert read(served, job_id, 5) == [1, 2, 3, 4, 5]
    assert read(served, job_id, 5, after=3) == [4, 5]
    assert read(served, job_id, 5, after=1, **{"last-event-id": "4"}) == [5]


@pytest.mark.parametrize("number", ["-1", "x", str(2**40), "1.5"])
def test_a_number_that_is_none_is_refused(shared: Served, number: str) -> None:
    """Whichever way it is given."""
    with shared.sessions.begin() as session:
        job_id = make.job(session).id
    at = f"/api/v1/jobs/{job_id}/events"

    assert shared.client.get(at, headers={"last-event-id": number}).status_code == 422
    assert shared.client.get(at, params={"after": number}).status_code == 422


def test_nobody_misses_an_event_or_gets_it_twice(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers come at any time while events are written, and pages and batches are small."""
    monkeypatch.setattr(hub, "_PAGE_SIZE", 7)
    monkeypatch.setattr(hub, "_MAX_RECENT_EVENTS", 20)
    monkeypatch.setattr(hub, "_POLL_INTERVAL_SECS", 0.02)
    with served.sessions.begin() as session:
        job_id = make.job(session).id
    last, found = 151, []

    def write() -> None:
        for _ in range(30):
            add(served, job_id, 5)
            time.sleep(0.02)

    def watch(delay: float) -> None:
        time.sleep(delay)
        found.append(read(served, job_id, last))

    threads = [threading.Thread(target=write)]
    threads += [threading.Thread(target=watch, args=(0.1 * number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert found == [list(range(1, last + 1))] * 10


@pytest.mark.slow("40 s until buffers are full")
def test_a_reader_that_does_not_read_holds_nobody_up(quick: ApiSettings) -> None:
    """It stops somewhere; the others see everything, and it goes on where it stopped."""
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
    """And cannot be opened again."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            job_id = make.job(session).id
        at = f"{served.client.base_url}/api/v1/jobs/{job_id}"
        with httpx.stream("GET", f"{at}/events", timeout=20) as answer:
            lines = answer.iter_lines()
            assert next(parse(lines))["sequence"] == 1
            served.client.post(f"{at}/cancel")
            served.client.delete(at)
            rest = [event["sequence"] for event in parse(lines)]
        assert rest in ([], [2])
        assert served.client.get(f"{at}/events").status_code == 404


def test_a_silent_stream_shows_that_it_lives(
    quick: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With comments, which a browser passes over."""
    monkeypatch.setattr(hub, "_HEARTBEAT_INTERVAL_SECS", 0.05)
    with serving(quick) as served:
        with served.sessions.begin() as session:
            job_id = make.job(session).id
        at = f"{served.client.base_url}/api/v1/jobs/{job_id}/events?after=1"
        with httpx.stream("GET", at, timeout=20) as answer:
            beats = (line for line in answer.iter_lines() if line == ": heartbeat")
            # The stream never ends by itself: without three it runs into its time-out.
            assert len(list(itertools.islice(beats, 3))) == 3


def test_streams_end_when_the_server_stops(quick: ApiSettings) -> None:
    """They would hold it up for ever; the reader comes back with the number it has."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            job_id = make.job(session).id
        at = f"{served.client.base_url}/api/v1/jobs/{job_id}/events"
        stream = httpx.stream("GET", at, timeout=20)
        answer = stream.__enter__()
        lines = answer.iter_lines()
        assert next(parse(lines))["sequence"] == 1
    # Whole: the server said that this is the end of it, and did not cut it off.
    assert list(parse(lines)) == []
    assert answer.is_stream_consumed
    stream.__exit__(None, None, None)
