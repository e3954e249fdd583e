"""Delivery of one job's event stream to a thousand readers, each of which must get every event.

Starts an API process, and a job whose events are written at a steady rate. The readers are
bare sockets in one process; some disconnect in the middle and reconnect with ``Last-Event-ID``.
Every reader checks that numbers are consecutive. Prints one JSON
line, with the memory of the API process and the delay from an event's creation to its arrival.

    python -m benchmarks.event_readers --readers 1000 --events 600
"""

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import psutil
import uvloop
from sqlalchemy.orm import Session, sessionmaker

from benchmarks import _databases, _filling, _services
from benchmarks._latencies import percentile
from benchmarks._limits import raise_file_limit
from records import database, events
from tuner.workers.python_command import run_module

_GOALS = {"readers_with_all": 1.0, "api_peak_mb": 1000.0}
_JOB = 1
_LATE_SECS = 60.0
_SAMPLE_SECS = 0.25


class Reader(asyncio.Protocol):
    """Reader of the stream; ``last`` is the number of its last event."""

    def __init__(self, asking: "Asking", leaves_at: int | None) -> None:
        self.last = 0
        self.faults: list[str] = []
        self.n_connections = 0
        self.delays: list[float] = []
        self.finished = asyncio.get_running_loop().create_future()
        self._asking, self._leaves_at = asking, leaves_at
        self._connected = 0.0
        self._head, self._raw, self._rest = True, b"", b""
        self._transport: asyncio.Transport | None = None

    async def connect(self) -> None:
        """Connect, and request the events after the last one."""
        self.n_connections += 1
        self._head, self._raw, self._rest = True, b"", b""
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, "127.0.0.1", self._asking.port)
        except OSError as error:
            self._fail(f"{type(error).__name__}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._connected = time.time()
        # uvloop's transport is not a subclass of asyncio's, but has its methods.
        self._transport = cast("asyncio.Transport", transport)
        last = f"Last-Event-ID: {self.last}\r\n" if self.n_connections > 1 else ""
        request = (
            f"GET /api/v1/jobs/{_JOB}/events HTTP/1.1\r\nHost: 127.0.0.1:{self._asking.port}\r\n"
            f"Accept: text/event-stream\r\n{last}\r\n"
        )
        self._transport.write(request.encode())

    def data_received(self, data: bytes) -> None:
        """Process the complete events."""
        self._raw += data
        if self._head:
            head, end, body = self._raw.partition(b"\r\n\r\n")
            if not end:
                return
            if b" 200 " not in head.split(b"\r\n", 1)[0]:
                self._fail(head.split(b"\r\n", 1)[0].decode())
            self._head, self._raw = False, body
        *blocks, self._rest = (self._rest + self._dechunked()).split(b"\n\n")
        now = time.time()
        for block in blocks:
            if block.startswith(b"id: "):
                self._take(block, now)

    def _dechunked(self) -> bytes:
        """Remove and return the complete chunks of the buffer."""
        whole: list[bytes] = []
        while True:
            size, end, rest = self._raw.partition(b"\r\n")
            if not end or len(rest) < (n_bytes := int(size, 16)) + 2:
                return b"".join(whole)
            whole.append(rest[:n_bytes])
            self._raw = rest[n_bytes + 2 :]

    def connection_lost(self, exc: Exception | None) -> None:
        """Reconnect if that was planned; otherwise record a fault."""
        if self.finished.done():
            return
        if self._leaves_at is None or self.last < self._leaves_at:
            self._fail(f"lost after event {self.last}: {exc}")
            return
        self._leaves_at = None
        self._asking.reconnect(self)

    def _take(self, block: bytes, now: float) -> None:
        sequence = int(block[4 : block.index(b"\n")])
        if sequence != self.last + 1:
            self._fail(f"event {sequence} after {self.last}")
        self.last = sequence
        if sequence % self._asking.sampled == 0:
            created_text = json.loads(block[block.index(b"data: ") + 6 :])["created"]
            created = datetime.fromisoformat(created_text).timestamp()
            # Events during a planned absence are not delayed.
            if created > self._connected:
                self.delays.append(now - created)
        if sequence == self._asking.n_events and not self.finished.done():
            self.finished.set_result(True)
        if sequence == self._leaves_at and self._transport is not None:
            self._transport.abort()

    def _fail(self, what: str) -> None:
        self.faults.append(what)
        if not self.finished.done():
            self.finished.set_result(False)


class Asking:
    """State that all readers share."""

    def __init__(self, port: int, n_events: int, sampled: int) -> None:
        self.port, self.n_events, self.sampled = port, n_events, sampled
        self._tasks: set[asyncio.Task[None]] = set()

    def reconnect(self, reader: Reader) -> None:
        """Let a reader reconnect after a moment."""
        task = asyncio.get_running_loop().create_task(self._later(reader))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _later(reader: Reader) -> None:
        await asyncio.sleep(random.uniform(0.1, 2.0))
        await reader.connect()


def main() -> None:
    """Run the readers of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--readers", type=int, default=1_000)
    parser.add_argument("--events", type=int, default=600)
    parser.add_argument("--per-sec", type=float, default=10.0, help="events written per second")
    parser.add_argument("--reconnect", type=float, default=0.2, help="share that leaves once")
    parser.add_argument("--database", choices=_databases.KINDS, default="sqlite")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    _services.exit_on_sigterm()
    raise_file_limit()
    if arguments.port is not None:
        # The readers run in a process of their own and report their start and their results.
        print(json.dumps(uvloop.run(_read(arguments))), flush=True)
        return
    folder = Path(tempfile.mkdtemp(prefix="event-readers-"))
    try:
        with _databases.running(arguments.database, folder / "database") as url:
            print(json.dumps(_run(url, folder / "data", arguments)), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(database_url: str, data_dir: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    engine = _filling.open_filled(database_url, _filling.Filling(12_800, 200))
    try:
        with _services.api(database_url, data_dir) as (url, pid):
            api = psutil.Process(pid)
            before, peak = _resident(api), [0.0]
            stop = threading.Event()
            sampler = threading.Thread(target=_sample, args=(api, peak, stop))
            sampler.start()
            try:
                seen = _with_readers(url, database.sessions(engine), arguments)
            finally:
                stop.set()
                sampler.join()
            cpu = api.cpu_times()
    finally:
        engine.dispose()
    return {
        "benchmark": "event_readers",
        "database": arguments.database,
        "events_per_sec": arguments.per_sec,
        **seen,
        "api_before_mb": round(before, 1),
        "api_peak_mb": round(peak[0], 1),
        "api_cpu_secs": round(cpu.user + cpu.system, 1),
        "goals": _GOALS,
        "reached": seen["readers_with_all"] == 1.0 and peak[0] < _GOALS["api_peak_mb"],
    }


def _with_readers(
    url: str, sessions: sessionmaker[Session], arguments: argparse.Namespace
) -> dict[str, Any]:
    command = [
        *run_module("benchmarks.event_readers", "--port", url.rpartition(":")[2]),
        *("--readers", str(arguments.readers), "--events", str(arguments.events)),
        *("--reconnect", str(arguments.reconnect)),
    ]
    readers = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=_services.ROOT, bufsize=1
    )
    try:
        assert readers.stdout is not None
        readers.stdout.readline()
        started = time.monotonic()
        for number in range(arguments.events):
            time.sleep(max(started + number / arguments.per_sec - time.monotonic(), 0.0))
            _write(sessions, number)
        seen: dict[str, Any] = json.loads(readers.communicate(timeout=_LATE_SECS * 2)[0])
    finally:
        readers.kill()
        readers.wait()
    return seen


def _write(sessions: sessionmaker[Session], number: int) -> None:
    data = {
        "pick": number // 8 + 1,
        "task_id": number % 200 + 1,
        "record": number + 1,
        "latency_secs": 0.001,
        "error_kind": None,
        "best": False,
    }
    with sessions.begin() as session:
        events.add_event(session, _JOB, "trial", data)


async def _read(arguments: argparse.Namespace) -> dict[str, Any]:
    drawn = random.Random(0)
    asking = Asking(arguments.port, arguments.events, max(arguments.events // 60, 1))
    readers = []
    for _ in range(arguments.readers):
        leaves = drawn.random() < arguments.reconnect
        leaves_at = drawn.randint(1, max(arguments.events - 1, 1)) if leaves else None
        readers.append(Reader(asking, leaves_at))
    for first in range(0, len(readers), 50):
        await asyncio.gather(*(reader.connect() for reader in readers[first : first + 50]))
    print("connected", flush=True)
    await asyncio.wait(
        [reader.finished for reader in readers],
        timeout=arguments.events / max(arguments.per_sec, 0.1) + _LATE_SECS,
    )
    delays = [delay for reader in readers for delay in reader.delays]
    faults = [fault for reader in readers for fault in reader.faults]
    whole = sum(reader.last == arguments.events and not reader.faults for reader in readers)
    return {
        "readers": len(readers),
        "events": arguments.events,
        "readers_with_all": whole / len(readers),
        "reconnected": sum(reader.n_connections > 1 for reader in readers),
        "faults": len(faults),
        "some_faults": sorted(set(faults))[:5],
        "delay_p50_ms": round(percentile(delays, 0.5) * 1e3, 1) if delays else None,
        "delay_p99_ms": round(percentile(delays, 0.99) * 1e3, 1) if delays else None,
        "delay_max_ms": round(max(delays) * 1e3, 1) if delays else None,
        "reader_cpu_secs": round(time.process_time(), 1),
    }


def _sample(process: psutil.Process, peak: list[float], stop: threading.Event) -> None:
    while not stop.wait(_SAMPLE_SECS):
        peak[0] = max(peak[0], _resident(process))


def _resident(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 1e6
    except psutil.Error:
        return 0.0


if __name__ == "__main__":
    main()
