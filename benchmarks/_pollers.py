"""Many clients that poll one address from one process, cheap enough to time the service only.

Prints one JSON line.

    python -m benchmarks._pollers http://127.0.0.1:8080/api/v1/jobs/1/tasks --clients 200
"""

import argparse
import asyncio
import json
import os
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import uvloop

from benchmarks._latencies import percentile
from benchmarks._limits import raise_file_limit

_TIMEOUT_SECS = 30.0


@dataclass
class Tally:
    """Seconds of all responses, errors by kind, and bytes."""

    secs: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    n_bytes: int = 0
    n_late: int = 0
    elapsed_secs: float = 0.0

    def fail(self, kind: str) -> None:
        """Count an error."""
        self.errors[kind] = self.errors.get(kind, 0) + 1


class _Answer(asyncio.Protocol):
    """Connection that counts the bytes of responses and keeps none."""

    def __init__(self) -> None:
        self.done: asyncio.Future[tuple[int, int]] | None = None
        self._head = b""
        self._left = -1
        self._n_bytes = 0
        self._status = 0

    def data_received(self, data: bytes) -> None:
        self._n_bytes += len(data)
        if self._left < 0:
            self._head += data
            head, end, body = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._status = int(head[9:12])
            length = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
            self._left = int(length or 0)
            data = body
        self._left -= len(data)
        if self._left <= 0 and self.done is not None and not self.done.done():
            self.done.set_result((self._status, self._n_bytes))
            self._head, self._left, self._n_bytes = b"", -1, 0

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(exc or ConnectionResetError("closed"))


def main() -> None:
    """Poll as the command line says, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--interval", type=float, default=1.0, help="seconds between a client's requests"
    )
    parser.add_argument("--token", help="secret of a token to send")
    parser.add_argument("--identity", action="store_true", help="do not accept gzip")
    parser.add_argument(
        "--nice",
        type=int,
        default=0,
        help="niceness of the clients, which stand for other machines",
    )
    arguments = parser.parse_args()
    os.nice(arguments.nice)
    raise_file_limit()
    tally = Tally()
    uvloop.run(_poll_all(arguments, tally))
    print(json.dumps(described(tally)))


def described(tally: Tally) -> dict[str, Any]:
    """Return the report of a tally."""
    shares = (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("max_ms", 1.0))
    return {
        "requests": len(tally.secs),
        "errors": sum(tally.errors.values()),
        "error_kinds": tally.errors,
        # Until the last response.
        "secs": round(tally.elapsed_secs, 2),
        # The client was still waiting or not scheduled when its next request was due.
        "late": tally.n_late,
        **{
            name: round(percentile(tally.secs, share) * 1e3, 2)
            for name, share in shares
            if tally.secs
        },
        "kb_per_answer": round(tally.n_bytes / max(len(tally.secs), 1) / 1e3, 1),
        "cpu_secs": round(time.process_time(), 2),
    }


async def _poll_all(arguments: argparse.Namespace, tally: Tally) -> None:
    parts = urlsplit(arguments.url)
    encoding = "" if arguments.identity else "Accept-Encoding: gzip\r\n"
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    token = f"Authorization: Bearer {arguments.token}\r\n" if arguments.token else ""
    request = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{encoding}{token}\r\n".encode()
    began = time.monotonic()
    await asyncio.gather(
        *(
            _poll(
                (str(parts.hostname), parts.port or 80),
                request,
                tally,
                (began + arguments.interval * client / arguments.clients, arguments.interval),
                began + arguments.seconds,
            )
            for client in range(arguments.clients)
        )
    )
    tally.elapsed_secs = time.monotonic() - began


async def _poll(
    address: tuple[str, int], request: bytes, tally: Tally, rhythm: tuple[float, float], end: float
) -> None:
    loop = asyncio.get_running_loop()
    due, interval = rhythm
    transport: asyncio.Transport | None = None
    while due < end:
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
        try:
            if transport is None or transport.is_closing():
                transport, answer = await loop.create_connection(_Answer, *address)
            answer.done = loop.create_future()
            sent = time.monotonic()
            transport.write(request)
            async with asyncio.timeout(_TIMEOUT_SECS):
                status, n_bytes = await answer.done
        except (OSError, TimeoutError) as error:
            tally.fail(type(error).__name__)
            if transport is not None:
                transport.abort()
        else:
            tally.secs.append(time.monotonic() - sent)
            tally.n_bytes += n_bytes
            if status != 200:
                tally.fail(f"status {status}")
        due += interval
        if due < time.monotonic():
            tally.n_late += 1
            due = time.monotonic()
    if transport is not None:
        transport.close()


if __name__ == "__main__":
    main()
