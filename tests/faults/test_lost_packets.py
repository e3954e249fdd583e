"""A network that loses packets and refuses nothing: connections are given up within seconds."""

import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Connection, exc, make_url, text

from records import database
from records.tuning import events
from tests.cli import ROOT
from tests.service.rig import rig
from tests.services import is_ready
from tests.tuner.client.tokens import make_token
from tests.waiting import wait_for
from tuner.client import TunerClient
from tuner.client.errors import ServiceError
from tuner.devices.runners.addresses import parse_addresses
from tuner.devices.runners.tracker import Tracker
from tuner.errors import DeviceLost

# Names and addresses are of this process: a killed run leaves its link behind.
_NAME = f"tuner{os.getpid() % 10_000}"
_LINK = secrets.randbelow(1 << 14) * 4
_HERE, _THERE = (f"10.213.{_LINK >> 8}.{(_LINK & 255) + end}" for end in (1, 2))
_PORT = 5432
# Passes bytes from a port within the namespace on to the socket file of the server.
_FORWARD = """
import asyncio, sys

async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def serve(reader, writer):
    inner, out = await asyncio.open_unix_connection(sys.argv[3])
    await asyncio.gather(copy(reader, out), copy(inner, writer), return_exceptions=True)

async def main():
    async with await asyncio.start_server(serve, sys.argv[1], int(sys.argv[2])) as server:
        print("ready", flush=True)
        await server.serve_forever()

asyncio.run(main())
"""


@dataclass(frozen=True)
class Network:
    """A link to a namespace in which PostgreSQL listens.

    Attributes:
        url: The database over the link.
        direct: The same database without it.
    """

    url: str
    direct: str

    def lose_packets(self) -> None:
        """Drop every answer on its way back: no reset, no error, silence."""
        _run("ip", "netns", "exec", _NAME, "ip", "route", "add", "blackhole", f"{_HERE}/32")

    def mend(self) -> None:
        """Deliver packets again."""
        _run("ip", "netns", "exec", _NAME, "ip", "route", "del", "blackhole", f"{_HERE}/32")

    @contextmanager
    def program(self, *command: str, log: Path, **environ: str) -> Iterator[None]:
        """Run a program within the namespace."""
        with log.open("ab") as stream:
            process = subprocess.Popen(
                ["ip", "netns", "exec", _NAME, *command],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def network(postgres_url: str) -> Iterator[Network]:
    """PostgreSQL behind a link of its own; needs root."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2")
    try:
        _run("ip", "netns", "add", _NAME)
    except subprocess.CalledProcessError:
        pytest.skip("needs the right to create network namespaces")
    parsed = make_url(postgres_url)
    socket = f"{parsed.query['host']}/.s.PGSQL.5432"
    forwarder = None
    try:
        _run("ip", "link", "add", f"{_NAME}a", "type", "veth", "peer", f"{_NAME}b", "netns", _NAME)
        _run("ip", "addr", "add", f"{_HERE}/30", "dev", f"{_NAME}a")
        _run("ip", "link", "set", f"{_NAME}a", "up")
        inside = ("ip", "netns", "exec", _NAME)
        _run(*inside, "ip", "addr", "add", f"{_THERE}/30", "dev", f"{_NAME}b")
        _run(*inside, "ip", "link", "set", f"{_NAME}b", "up")
        forwarder = subprocess.Popen(
            [*inside, sys.executable, "-c", _FORWARD, _THERE, str(_PORT), socket],
            stdout=subprocess.PIPE,
        )
        assert forwarder.stdout is not None
        assert forwarder.stdout.readline() == b"ready\n"
        url = f"postgresql://postgres@{_THERE}:{_PORT}/{parsed.database}"
        yield Network(url, postgres_url)
    finally:
        if forwarder is not None:
            forwarder.kill()
            forwarder.communicate()
        # A process that still ends in the namespace would keep the link.
        subprocess.run(["ip", "link", "del", f"{_NAME}a"], check=False, capture_output=True)
        _run("ip", "netns", "del", _NAME)


@pytest.mark.in_ci
@pytest.mark.slow("15 s without an answer")
def test_lost_packets_are_noticed_within_half_a_minute(network: Network) -> None:
    """A statement that is sent and a pending answer fail; later, a new connection works."""
    engine = database.open_database(network.url)
    secs: list[float] = []

    def ask(connection: Connection, statement: str) -> None:
        started = time.monotonic()
        with pytest.raises(exc.OperationalError):
            connection.execute(text(statement))
        secs.append(time.monotonic() - started)

    with engine.connect() as waiting, engine.connect() as sending:
        sending.execute(text("SELECT 1"))
        waits = threading.Thread(target=ask, args=(waiting, "SELECT pg_sleep(60)"))
        waits.start()
        time.sleep(0.5)
        network.lose_packets()
        ask(sending, "SELECT 2")
        waits.join()
    network.mend()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar() == 1
    engine.dispose()

    assert len(secs) == 2
    assert 5.0 < min(secs) <= max(secs) < 30.0


_TRIALS = 60
_RECOVERY_SECS = 30.0


@pytest.mark.in_ci
@pytest.mark.slow("a minute of tuning, half of it without a network")
def test_a_service_recovers_within_half_a_minute(network: Network, tmp_path: Path) -> None:
    """The API says that it is unavailable, and API and worker go on once packets arrive."""
    with rig(network.url, tmp_path, run_secs=0.1) as opened:
        url = opened.serve()
        opened.engine.dispose()
        opened.engine = database.open_database(network.direct)
        opened.sessions = database.sessions(opened.engine)
        job = opened.submit(trials=_TRIALS)
        wait_for(lambda: opened.n_trials() >= 4, 60.0)

        network.lose_packets()
        lost = time.monotonic()
        answer = httpx.get(f"{url}/api/v1/jobs/{job}", timeout=60.0, trust_env=False, verify=False)
        assert answer.status_code == 503, answer.text
        assert time.monotonic() - lost < _RECOVERY_SECS
        standing_by = "standing by again"
        # After as many time-outs of connections as it takes to give up a round and the lease.
        wait_for(lambda: standing_by in (tmp_path / "worker.1.log").read_text(), 3 * _RECOVERY_SECS)
        n_before = opened.n_trials()
        network.mend()
        mended = time.monotonic()

        wait_for(lambda: opened.n_trials() > n_before, _RECOVERY_SECS)
        left = _RECOVERY_SECS - (time.monotonic() - mended)
        path = f"{url}/api/v1/jobs/{job}"
        wait_for(
            lambda: httpx.get(path, timeout=30.0, trust_env=False, verify=False).is_success, left
        )
        wait_for(lambda: opened.state(job) == "done", 180.0)
        opened.check_counts(job)
        assert opened.job(job).attempts == 0


@pytest.mark.slow("half a minute without a network")
def test_a_client_recovers_within_half_a_minute(network: Network, tmp_path: Path) -> None:
    """An event that happened while packets were lost arrives, once, after they arrive again."""
    port = 8080
    url = f"http://{_THERE}:{port}"
    token = make_token(network.direct, "read", "admin")
    seen: list[int] = []
    with rig(network.direct, tmp_path) as opened:
        job = opened.submit()
        api = (sys.executable, "-m", "api", "--host", _THERE, "--port", str(port))
        places = opened.environ() | {"TUNER_DATA_DIR": str(tmp_path / "data")}
        with network.program(*api, log=tmp_path / "api.log", **places):

            def read() -> None:
                # It reads until the link is removed.
                with suppress(ServiceError), TunerClient(url, token) as client:
                    for event in client.events(job):
                        seen.append(event.sequence)  # noqa: PERF401  seen by the other thread

            wait_for(lambda: is_ready(url))
            threading.Thread(target=read, daemon=True).start()
            wait_for(lambda: seen, 20.0)
            network.lose_packets()
            with opened.sessions.begin() as session:
                number = events.add_event(session, job, "priority", {"priority": 1})
            # Longer than any time-out of the client, which is connecting again by then.
            time.sleep(_RECOVERY_SECS)
            network.mend()

            wait_for(lambda: number in seen, _RECOVERY_SECS)
            with TunerClient(url, token) as client:
                assert client.job(job).job.id == job
    assert seen == list(range(1, number + 1))


@pytest.mark.tvm
@pytest.mark.slow("15 s without an answer, and TVM's tracker")
def test_a_tracker_that_falls_silent_is_noticed_within_half_a_minute(
    network: Network, tmp_path: Path
) -> None:
    """A request for a server, which may wait without limit while there is an answer, fails."""
    (address,) = parse_addresses(f"{_THERE}:9190/rasp4b")
    command = (sys.executable, "-m", "tvm.exec.rpc_tracker", "--host", _THERE, "--port", "9190")
    failed = threading.Event()
    with network.program(*command, log=tmp_path / "tracker.log"):

        def is_up() -> bool:
            with suppress(DeviceLost), closing(Tracker(address)) as tracker:
                return tracker.servers() == []
            return False

        def request() -> None:
            with closing(Tracker(address)) as tracker, pytest.raises(DeviceLost):
                tracker.request()
            failed.set()

        wait_for(is_up, 300.0)
        threading.Thread(target=request, daemon=True).start()
        assert not failed.wait(3.0)
        network.lose_packets()
        assert failed.wait(_RECOVERY_SECS)
