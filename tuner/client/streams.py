"""The events of a job as they happen, over as many connections as it takes."""

import time
from collections.abc import Iterable, Iterator

import httpx

from tuner.client.errors import ServiceError
from tuner.client.models import read_answer
from tuner.client.transport import Transport, delay_secs, is_transient
from tuner.schemas import Event

# The service sends a heartbeat every 15 seconds.
_READ_TIMEOUT_SECS = 25.0
_CONNECT_TIMEOUT_SECS = 10.0


def follow(transport: Transport, job: int, after: int, patience_secs: float) -> Iterator[Event]:
    """Yield every event of a job after a number, once and in order, until the caller stops.

    Args:
        transport: Connection used for this stream only.
        after: Number of the last event that the caller has.
        patience_secs: Time to wait for a service since its last answer, seconds.

    Raises:
        ServiceError: If the job does not exist, or the service does not answer for too long.
    """
    n_failures, answered = 0, time.monotonic()
    while True:
        try:
            for event in _read(transport, job, after):
                n_failures, answered = 0, time.monotonic()
                if event is not None and event.sequence > after:
                    after = event.sequence
                    yield event
        except ServiceError as error:
            if not is_transient(error):
                raise
            if time.monotonic() - answered > patience_secs:
                raise
        time.sleep(delay_secs(n_failures))
        n_failures += 1


def _read(transport: Transport, job: int, after: int) -> Iterator[Event | None]:
    """Yield the events of one connection; None for a sign of life."""
    timeout = httpx.Timeout(_CONNECT_TIMEOUT_SECS, read=_READ_TIMEOUT_SECS)
    headers = {"accept": "text/event-stream", "last-event-id": str(after)}
    with transport.stream(
        "GET", f"/jobs/{job}/events", headers=headers, timeout=timeout
    ) as response:
        yield None
        yield from parse_events(lines_of(response.iter_bytes()))


def lines_of(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield complete lines, and drop the last one if it is cut off."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r").decode("utf-8", "replace")


def parse_events(lines: Iterable[str]) -> Iterator[Event | None]:
    """Yield the events of a stream; None for a comment.

    Raises:
        ServerError: If the data is not an event.
    """
    data: list[str] = []
    for line in lines:
        if line.startswith(":"):
            yield None
        elif line:
            name, _, value = line.partition(":")
            if name == "data":
                data.append(value.removeprefix(" "))
        elif data:
            yield read_answer(Event, "\n".join(data))
            data = []
