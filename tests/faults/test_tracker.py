"""Trackers and servers that die, under calls and under a whole tuning run."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import select

from records import database
from records.models import MeasureRecord
from tests import sleeping_engine as sleeping
from tests.cli import Cli, finish
from tests.rpc_servers import RpcServers
from tests.waiting import wait_for
from tuner.devices.runners.rpc_fleet import RpcFleet
from tuner.engines.base import BuildRequest, EvaluatorSettings, RunRequest
from tuner.errors import DeviceLost
from tuner.settings import Settings
from tuner.workers.base import Call, CallTimeout

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]

EVALUATOR = EvaluatorSettings(min_repeat_ms=0, cache_flush=False)
RequestOf = Callable[[str], RunRequest]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RpcServers]:
    """A tracker for all tests."""
    with RpcServers(tmp_path_factory.mktemp("servers")) as started:
        yield started


@pytest.fixture
def servers(started: RpcServers) -> RpcServers:
    """The tracker and two servers, to be killed; those that the test before left are kept."""
    if started.n_servers() != 2:
        for name in ("first", "second"):
            with suppress(KeyError, ProcessLookupError):
                started.kill(name)
            started.start_server(name)
        started.wait_for(2)
    return started


@pytest.fixture
def request_of(tmp_path: Path) -> RequestOf:
    """Builds a program and asks to run it."""

    def build(trace: str) -> RunRequest:
        built = sleeping.build(BuildRequest(b"", sleeping.SPEC, trace, str(tmp_path / trace)))
        return RunRequest(built.artifact, sleeping.SPEC, (), EVALUATOR)

    return build


@contextmanager
def open_fleet(servers: RpcServers, folder: Path) -> Iterator[RpcFleet]:
    """Open a client whose processes are warm."""
    fleet = RpcFleet(Settings("", folder, sleeping.NAME, 1, rpc=servers.setting), poll_secs=0.2)
    try:
        for runner in fleet.runners:
            runner.describe("llvm").result()
        yield fleet
    finally:
        fleet.close()


def is_lost(call: Call) -> bool:
    """Wait for a call, and tell whether its device was lost."""
    try:
        call.result()
    except DeviceLost:
        return True
    return False


@pytest.mark.slow("a minute: a tracker is lost and found")
def test_a_lost_tracker_takes_the_devices_and_brings_them_back(
    servers: RpcServers, request_of: RequestOf, tmp_path: Path
) -> None:
    """Running calls continue without the tracker; calls that wait for a server fail."""
    with open_fleet(servers, tmp_path) as fleet:
        runner = fleet.runners[0]
        before = runner.meter.busy_secs
        running = runner.measure("run", request_of(sleeping.HANG), timeout_secs=8.0)
        wait_for(lambda: runner.meter.busy_secs > before + 0.5, 180.0)
        waiting = runner.measure("run", request_of("program-0"), timeout_secs=30.0)
        servers.kill("tracker")
        wait_for(lambda: not fleet.runners, 180.0)

        with pytest.raises(CallTimeout):
            running.result()
        with pytest.raises(DeviceLost, match="is offline"):
            waiting.result()

        servers.start_tracker()
        wait_for(lambda: len(fleet.runners) == 2, 180.0)
        request = request_of("program-0")
        calls = [each.measure("run", request, timeout_secs=30.0) for each in fleet.runners]
        assert all(call.result().run_secs for call in calls)


@pytest.mark.slow("20 s: a server is lost and found")
def test_a_lost_server_takes_its_call_and_no_other(
    servers: RpcServers, request_of: RequestOf, tmp_path: Path
) -> None:
    """One that comes in its location is a device as it was."""
    with open_fleet(servers, tmp_path) as fleet:
        request = request_of("program-4")
        before = {each.name: each.meter.busy_secs for each in fleet.runners}
        calls = [each.measure("run", request, timeout_secs=30.0) for each in fleet.runners]
        names = [each.name for each in fleet.runners]
        wait_for(
            lambda: all(each.meter.busy_secs > before[each.name] for each in fleet.runners), 180.0
        )
        servers.kill("first")

        outcomes = [is_lost(call) for call in calls]
        assert sorted(outcomes) == [False, True]
        wait_for(lambda: len(fleet.runners) == 1, 180.0)
        (left,) = fleet.runners
        assert left.name == names[outcomes.index(False)]
        assert left.measure("run", request, timeout_secs=30.0).result().run_secs

        servers.start_server("first")
        wait_for(lambda: len(fleet.runners) == 2, 180.0)
        assert fleet.runners[1].measure("run", request, timeout_secs=30.0).result().run_secs


@pytest.mark.slow("starts servers and a tracker for each case")
def test_a_crash_takes_the_server_in_python_with_it(
    servers: RpcServers, request_of: RequestOf, tmp_path: Path
) -> None:
    """It is a lost device then, and the other one is there."""
    with open_fleet(servers, tmp_path) as fleet:
        call = fleet.runners[0].measure("run", request_of(sleeping.CRASH), timeout_secs=30.0)
        with pytest.raises(DeviceLost, match="is offline"):
            call.result()

        wait_for(lambda: len(fleet.runners) == 1, 180.0)
        servers.wait_for(1)


@pytest.mark.slow("80 s: servers and a tracker start again")
def test_a_job_outlives_a_server_and_the_tracker(servers: RpcServers, tmp_path: Path) -> None:
    """The budget is spent exactly, no trial twice, and every record is of its kernel."""
    environ = {"TUNER_ENGINE": sleeping.NAME, "TUNER_N_BUILDERS": "1", "TUNER_RPC": servers.setting}
    words = "tune zoo:mlp --trials 32 --trials-per-round 4 --cost-model random"
    cli = Cli(tmp_path, environ)
    tuning = cli.start(*words.split(), "--no-cache-flush", "--min-repeat-ms", "0")
    wait_for(lambda: cli.count_records() >= 8, 180.0)
    servers.kill("first")
    wait_for(lambda: cli.count_records() >= 12, 180.0)
    servers.kill("tracker")
    time.sleep(2.0)
    servers.start_tracker()
    answer = finish(tuning)

    assert answer.status == 0, answer.err
    records = read_records(cli)
    assert len(records) == len({(each.task_id, each.trace_hash) for each in records}) == 32
    for record in records:
        sleep_secs = sleeping.sleep_secs(record.trace)
        assert record.verified
        assert all(sleep_secs <= secs for secs in record.run_secs or ())
    assert len({record.worker for record in records}) == 2


def read_records(cli: Cli) -> list[MeasureRecord]:
    """Return what was measured so far."""
    engine = database.open_database(cli.url)
    try:
        with database.sessions(engine, read_only=True)() as session:
            return list(session.scalars(select(MeasureRecord)))
    finally:
        engine.dispose()
