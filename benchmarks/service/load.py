"""Load of many clients on routes of a running service, and what a bystander notices of it.

Clients of one token ask again as soon as they have an answer; a bystander, with a token of its own
if one is given, asks four times a second beside them. The clients share the machine with the
service at a lower priority, because real clients have machines of their own. Prints a JSON line for
each route and number of clients.

    python -m benchmarks.service.load http://127.0.0.1:8080 --clients 1 50 200 --seconds 10
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import uvloop

_ROUTES = ("/api/v1/jobs", "/api/v1/records/list", "/api/v1/jobs/1", "/api/v1/jobs/1/tasks")
_TIMEOUT_SECS = 30.0
_BYSTANDER_INTERVAL_SECS = 0.25
_GOALS = {"errors": 0, "bystander_max_ms": 1000.0}
_SHARES = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "max_ms": 100.0}


@dataclass(frozen=True)
class Load:
    """Clients of one token on one address.

    Attributes:
        token: Secret of the token; empty if the service needs none.
        n_clients: Number of clients, each with its connection.
        interval_secs: Seconds between the requests of a client, 0 to ask without a pause.
        secs: Seconds after which no client asks again.
        closes: True to open a connection for each request.
    """

    url: str
    token: str
    n_clients: int
    interval_secs: float
    secs: float
    closes: bool


@dataclass
class _Tally:
    secs: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


class _Answer(asyncio.Protocol):
    """Connection that waits for whole responses and keeps none."""

    def __init__(self) -> None:
        self.done: asyncio.Future[int] | None = None
        self._head, self._left, self._status = b"", -1, 0

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._status = int(head[9:12])
            length = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
            self._left = int(length or 0)
        self._left -= len(data)
        if self._left <= 0 and self.done is not None and not self.done.done():
            self.done.set_result(self._status)
            self._head, self._left = b"", -1

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(exc or ConnectionResetError("closed"))


def main() -> None:
    """Load the routes of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url", help="address of the service")
    parser.add_argument("--routes", nargs="+", default=_ROUTES)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 50, 200])
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of each load")
    parser.add_argument("--token", default="", help="secret of the token of the clients")
    parser.add_argument("--bystander-token", default="", help="secret of the bystander's token")
    parser.add_argument("--close", action="store_true", help="open a connection for each request")
    parser.add_argument("--nice", type=int, default=5, help="niceness of the clients")
    given = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(2, os.nice, (given.nice,)) as pool:
        for route in given.routes:
            for n_clients in given.clients:
                url = given.url.rstrip("/") + route
                ends = (given.seconds, given.close)
                crowd = Load(url, given.token, n_clients, 0.0, *ends)
                lone = Load(url, given.bystander_token, 1, _BYSTANDER_INTERVAL_SECS, *ends)
                clients, bystander = pool.map(run, [crowd, lone], chunksize=1)
                n_errors = clients["errors"] + bystander["errors"]
                slowest = bystander.get("max_ms", float("inf"))
                reached = not n_errors and slowest < _GOALS["bystander_max_ms"]
                result = {"route": route, "clients": n_clients, **clients, "bystander": bystander}
                goals = {"goals": _GOALS, "reached": reached}
                print(json.dumps({"benchmark": "service.load", **result, **goals}), flush=True)


def run(load: Load) -> dict[str, Any]:
    """Return how many requests were answered, how fast, and the errors by kind."""
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    tally, started = _Tally(), time.monotonic()
    uvloop.run(_ask_all(load, tally))
    secs = time.monotonic() - started
    times = {
        name: round(float(np.percentile(tally.secs, share)) * 1e3, 2)
        for name, share in _SHARES.items()
        if tally.secs
    }
    return {
        "requests": len(tally.secs),
        "per_sec": round(len(tally.secs) / secs, 1),
        "errors": tally.errors.total(),
        "error_kinds": dict(tally.errors),
        **times,
    }


async def _ask_all(load: Load, tally: _Tally) -> None:
    parts = urlsplit(load.url)
    lines = [f"GET {parts.path} HTTP/1.1", f"Host: {parts.netloc}", "Accept-Encoding: gzip"]
    lines += [f"Authorization: Bearer {load.token}"] if load.token else []
    request = "\r\n".join([*lines, "", ""]).encode()
    address = (str(parts.hostname), parts.port or 80)
    end = time.monotonic() + load.secs
    await asyncio.gather(*(_ask(load, address, request, end, tally) for _ in range(load.n_clients)))


async def _ask(
    load: Load, address: tuple[str, int], request: bytes, end: float, tally: _Tally
) -> None:
    loop = asyncio.get_running_loop()
    transport: asyncio.Transport | None = None
    while time.monotonic() < end:
        sent = time.monotonic()
        try:
            async with asyncio.timeout(_TIMEOUT_SECS):
                if transport is None or transport.is_closing():
                    transport, answer = await loop.create_connection(_Answer, *address)
                answer.done = loop.create_future()
                transport.write(request)
                status = await answer.done
                if load.closes:
                    transport.close()
        except (OSError, TimeoutError) as error:
            tally.errors[type(error).__name__] += 1
            await asyncio.sleep(_BYSTANDER_INTERVAL_SECS)
            if transport is not None:
                transport.abort()
        else:
            if status == 200:
                tally.secs.append(time.monotonic() - sent)
            else:
                tally.errors[f"status {status}"] += 1
        await asyncio.sleep(max(sent + load.interval_secs - time.monotonic(), 0.0))
    if transport is not None:
        transport.close()


if __name__ == "__main__":
    main()
