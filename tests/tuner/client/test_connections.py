"""Broken connections: nothing is lost, done twice, or left incomplete."""

import io
import itertools
import json
import socket
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from tests.cli import finish
from tests.services import Service, running
from tests.tuner.client.flaky import answer, answering, proxied
from tuner.client import ConnectError, ServerError, ServiceError, TunerClient
from tuner.client.downloads import fetch
from tuner.client.transport import Transport
from tuner.errors import WorkError
from tuner.schemas import JobSummary


@pytest.mark.slow("reconnects for 15 s")
def test_a_cut_event_stream_loses_nothing(service: Service, done: JobSummary) -> None:
    """A stream may be cut anywhere, also within an event."""
    with proxied(service.port, 700, 901, 1500, 33, 5000) as proxy, TunerClient(proxy.url) as client:
        events = list(itertools.islice(client.events(done.id), done.n_events))

    assert [event.sequence for event in events] == list(range(1, done.n_events + 1))
    assert len(proxy.requests) >= 6


@pytest.mark.slow("reconnects for 13 s")
def test_a_cut_download_is_resumed(service: Service, done: JobSummary, tmp_path: Path) -> None:
    """Only the missing bytes are requested again, and the whole file is verified."""
    with TunerClient(service.url) as client:
        client.wait_for_build(client.build(done.id))
    with proxied(service.port, 900, 1200) as proxy, TunerClient(proxy.url) as client:
        client.download_library(done.id, tmp_path / "out")

    ranges = [request for request in proxy.requests if b"range: bytes=" in request.lower()]
    assert len(ranges) == 2
    assert all(b"if-range" in request.lower() for request in ranges)


def test_a_request_is_repeated_after_a_lost_answer(service: Service) -> None:
    """The idempotency key makes both requests one job."""
    with proxied(service.port, 10) as proxy, TunerClient(proxy.url) as client:
        submitted = client.tune("zoo:mlp", trials=0, seed=4242)
        actions = [a.action for a in client.audit() if a.job_id == submitted.job.id]

    posts = [request for request in proxy.requests if request.startswith(b"POST")]
    assert len(posts) == 2
    assert actions == ["tune"]


@pytest.mark.slow("20 s: the service starts again")
def test_a_client_survives_a_restart_of_the_service(tmp_path: Path) -> None:
    """A client that watches a job gets all of its events although the API was killed."""
    with running(tmp_path, TOY_RUN_SECS="0.05") as service, TunerClient(service.url) as client:
        job = client.tune("zoo:mlp", trials=24).job.id
        command = subprocess.Popen(
            [sys.executable, "-m", "tuner", "tune", "zoo:mlp", "--trials", "24", "--json"],
            env=service.cli(tmp_path).environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert command.stderr is not None
        assert command.stderr.readline().startswith(f"job {job} at")
        events = client.events(job)
        seen = [next(events).sequence for _ in range(5)]
        service.stop("api", 9)
        restart = threading.Timer(1.0, service.start_api)
        restart.start()
        for event in events:
            seen.append(event.sequence)
            if event.kind == "state" and event.data["state"] == "done":
                break
        restart.join()
        answer = finish(command, 60)

    assert (answer.status, answer.json["trials"]) == (0, 24), answer.err
    assert seen == list(range(1, len(seen) + 1))


def test_a_service_that_stays_away_is_given_up() -> None:
    """The client gives up after its time-out."""
    with (
        answering(lambda connection: connection.close()) as url,
        TunerClient(url) as client,
        pytest.raises(ConnectError, match="broke"),
    ):
        next(client.events(1, patience_secs=0.2))


def test_damaged_bytes_are_not_kept() -> None:
    """A wrong checksum is an error."""

    def respond(connection: socket.socket) -> None:
        answer(connection, "200 OK", b"other bytes", f'etag: "{"0" * 64}"')

    with answering(respond) as url:
        transport = Transport(url, None, 5.0)
        with pytest.raises(ServerError, match="damaged"):
            fetch(transport, "/jobs/1/library", {}, io.BytesIO(), lambda _n, _all: None)
        transport.close()


def test_a_library_that_arrives_damaged_leaves_the_old_one(tmp_path: Path) -> None:
    """A damaged download leaves the folder as it was."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.json").write_text("old")

    with (
        answering(lambda connection: answer(connection, "200 OK", b"no archive")) as url,
        TunerClient(url) as client,
        pytest.raises(WorkError, match="cannot be used"),
    ):
        client.download_library(1, out)

    assert (out / "manifest.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        ("500 Oops", b"", "HTTP status 500$"),
        ("404 Not Found", b"", "HTTP status 404 and no reason; check that the URL is"),
        ("200 OK", b"<html>hello</html>", "answers with a web page; check that the URL is"),
        ("200 OK", b"hello", "Invalid JSON"),
        ("200 OK", b"[1]", "JobDetails"),
        ("200 OK", b'{"job": 3}', "JobDetails.job"),
        ("302 Found", b"", "redirects"),
    ],
)
def test_another_server_is_not_a_service(status: str, body: bytes, words: str) -> None:
    """The error is one line with the reason."""
    kind = "text/html" if body.startswith(b"<") else "text/plain"

    def respond(connection: socket.socket) -> None:
        answer(connection, status, body, f"content-type: {kind}")

    with (
        answering(respond) as url,
        TunerClient(url) as client,
        pytest.raises(ServiceError, match=words),
    ):
        client.job(1)


def test_too_many_requests_are_sent_more_slowly() -> None:
    """The client waits as long as Retry-After requests."""
    answers = ["429 Slow down", "429 Slow down", "200 OK"]

    def respond(connection: socket.socket) -> None:
        answer(connection, answers.pop(0), b'{"items": []}', "retry-after: 0")

    with answering(respond) as url, TunerClient(url) as client:
        assert list(client.jobs()) == []

    assert not answers


def test_a_full_disk_is_no_moment_to_wait_for() -> None:
    """The error comes at once, with what the service says."""
    problem = {"type": "urn:subgraph-tuner:problem:disk-full", "title": "Disk full", "detail": "no"}
    requests: list[str] = []

    def respond(connection: socket.socket) -> None:
        requests.append("received")
        body = json.dumps(problem).encode()
        answer(connection, "503 Full", body, "retry-after: 60", "content-type: application/json")

    with (
        answering(respond) as url,
        TunerClient(url) as client,
        pytest.raises(ServerError) as caught,
    ):
        client.job(1)

    assert caught.value.kind == "disk-full"
    assert requests == ["received"]


def test_a_large_model_takes_little_memory(tmp_path: Path) -> None:
    """A model is sent while it is read."""
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    received = 0

    def respond(connection: socket.socket) -> None:
        nonlocal received
        while received < path.stat().st_size and (chunk := connection.recv(1 << 16)):
            received += len(chunk)
        connection.sendall(b"HTTP/1.1 413 Too much\r\ncontent-length: 0\r\n\r\n")

    tracemalloc.start()
    try:
        with answering(respond) as url, TunerClient(url) as client, pytest.raises(Exception):  # noqa: B017, PT011
            client.tune(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert received >= 64 << 20
    assert peak < 16 << 20
