"""Tests of the runners of real RPC servers on loopback, whose kernels sleep."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests import sleeping_engine as sleeping
from tests.rpc_servers import RpcServers
from tests.services import free_port
from tests.waiting import wait_for
from tuner.devices.runners.rpc import RpcRunner
from tuner.devices.runners.rpc_fleet import RpcFleet
from tuner.devices.runners.rpc_leases import RpcLeases
from tuner.devices.runners.tracker import Tracker, release
from tuner.engines.base import (
    BuildRequest,
    EvaluatorSettings,
    ReferenceRequest,
    RunRequest,
    RunResult,
)
from tuner.errors import DeviceLost, WorkerLost
from tuner.executors.factory import open_executor
from tuner.settings import Settings
from tuner.workers.base import CallTimeout

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.filterwarnings("ignore:::tvm"),
    pytest.mark.slow("starts servers and a tracker for each case"),
]

EVALUATOR = EvaluatorSettings(min_repeat_ms=0, cache_flush=False)
RequestOf = Callable[[str], RunRequest]


@pytest.fixture(scope="module")
def fleet(servers: RpcServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RpcFleet]:
    """Yield a client of both devices whose processes are warm."""
    with open_fleet(servers, tmp_path_factory.mktemp("fleet")) as opened:
        yield opened


@pytest.fixture
def runner(fleet: RpcFleet) -> RpcRunner:
    """Return the runner of one device."""
    runner = fleet.runners[0]
    assert isinstance(runner, RpcRunner)
    return runner


@contextmanager
def open_fleet(servers: RpcServers, folder: Path, options: str = "") -> Iterator[RpcFleet]:
    """Open another client of the servers."""
    opened = RpcFleet(Settings("", folder, sleeping.NAME, 1, rpc=servers.setting + options))
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def request_of(tmp_path: Path) -> RequestOf:
    """Return a function that builds a program and requests its run."""

    def build(trace: str) -> RunRequest:
        built = sleeping.build(BuildRequest(b"", sleeping.SPEC, trace, str(tmp_path / trace)))
        return RunRequest(built.artifact, sleeping.SPEC, (), EVALUATOR)

    return build


def is_sleep_of(result: RunResult, trace: str) -> bool:
    """Return whether samples are those of a program; a busy machine makes some longer."""
    expected = sleeping.sleep_secs(trace)
    return (
        result.run_secs is not None
        and expected <= min(result.run_secs) < expected + 0.25 * sleeping.BASE_SECS
    )


def test_a_runner_is_a_server_and_a_key_a_kind(fleet: RpcFleet, servers: RpcServers) -> None:
    """All servers of a key have one fingerprint, and each has its own name."""
    infos = [runner.describe("llvm").result() for runner in fleet.runners]

    with closing(Tracker(servers.address)) as tracker:
        addresses = [f"{host}:{port}" for host, port in tracker.servers()]
    assert [runner.name for runner in fleet.runners] == [
        f"rpc:nap/{address}" for address in addresses
    ]
    assert infos[0] == infos[1]
    assert infos[0].device["name"] == "rpc:nap"
    assert not infos[0].problem


def test_samples_are_those_of_the_kernel(
    runner: RpcRunner, request_of: RequestOf, servers: RpcServers
) -> None:
    """The samples are those of the program, and the server is free afterwards."""
    traces = ("program-0", "program-4")
    results = [
        runner.measure("run", request_of(trace), timeout_secs=30.0).result() for trace in traces
    ]

    assert all(map(is_sleep_of, results, traces))
    assert servers.n_servers() == 2
    assert runner.meter.busy_secs > 5 * sleeping.BASE_SECS


def test_a_wrong_kernel_is_detected(
    runner: RpcRunner, request_of: RequestOf, tmp_path: Path
) -> None:
    """A wrong result is detected by a reference of the coordinator."""
    kept = str(tmp_path / "reference.npz")
    asked = ReferenceRequest(b"", sleeping.SPEC, "real", 0)
    Path(kept).write_bytes(sleeping.reference(asked))

    right, wrong = (
        runner.measure("run", replace(request_of(trace), references=(kept,)), timeout_secs=30.0)
        for trace in ("program-1", sleeping.WRONG)
    )

    assert right.result().max_error == 0.0
    assert wrong.result().error_kind == "wrong_result"


def test_kernels_take_turns_in_one_session(runner: RpcRunner, request_of: RequestOf) -> None:
    """Interleaved kernels run in turns on the same server."""
    traces = ["program-0", "program-2"]
    requests = [request_of(trace) for trace in traces]

    results = runner.measure("run_interleaved", requests, 2, timeout_secs=30.0).result()

    assert all(map(is_sleep_of, results, traces))
    assert [len(result.run_secs) for result in results] == [6, 6]


def test_calls_can_be_awaited(runner: RpcRunner, request_of: RequestOf) -> None:
    """The event loop continues while a call is awaited."""

    async def measure() -> tuple[RunResult, int]:
        call = runner.measure("run", request_of("program-0"), timeout_secs=30.0)
        n_ticks = 0
        while not call.future.done():
            n_ticks += 1
            await asyncio.sleep(0.01)
        return await call, n_ticks

    result, n_ticks = asyncio.run(measure())

    assert is_sleep_of(result, "program-0")
    assert n_ticks > 5


def test_a_hung_kernel_is_killed_where_it_runs(
    runner: RpcRunner, request_of: RequestOf, servers: RpcServers
) -> None:
    """The server ends the session; the device is free and the local process stays warm."""
    before = runner._pool.call("os", "getpid")
    for _ in range(2):
        with pytest.raises(CallTimeout, match="ended the session after 2 s"):
            runner.measure("run", request_of(sleeping.HANG), timeout_secs=1.5).result()

    assert servers.n_servers() == 2
    result = runner.measure("run", request_of("program-0"), timeout_secs=30.0).result()
    assert is_sleep_of(result, "program-0")
    assert runner._pool.call("os", "getpid") == before


def test_a_session_lasts_no_longer_than_the_address_says(
    servers: RpcServers, request_of: RequestOf, tmp_path: Path
) -> None:
    """The limit of the address applies to a call with a longer time-out."""
    with open_fleet(servers, tmp_path, "?session_timeout=1") as fleet:
        call = fleet.runners[0].measure("run", request_of(sleeping.HANG), timeout_secs=500.0)
        with pytest.raises(CallTimeout, match="after 1 s"):
            call.result()


def test_waiting_for_a_server_is_not_timed(
    servers: RpcServers, runner: RpcRunner, request_of: RequestOf, tmp_path: Path
) -> None:
    """A call waits for another client for longer than its own time-out."""
    with open_fleet(servers, tmp_path) as others:
        (other,) = (peer for peer in others.runners if peer.name == runner.name)
        hung = other.measure("run", request_of(sleeping.HANG), timeout_secs=5.0)
        wait_for(lambda: other.meter.busy_secs > 0.5)

        result = runner.measure("run", request_of("program-0"), timeout_secs=2.0).result()

        assert is_sleep_of(result, "program-0")
        with pytest.raises(CallTimeout):
            hung.result()


def test_unused_leases_are_released(
    fleet: RpcFleet, servers: RpcServers, request_of: RequestOf
) -> None:
    """Leases of servers that no runner uses are released."""
    with (
        closing(Tracker(servers.address)) as tracker,
        closing(RpcLeases(servers.address)) as leases,
    ):
        for server in tracker.servers():
            release(leases.acquire(server))

    request = request_of("program-0")
    calls = [runner.measure("run", request, timeout_secs=30.0) for runner in fleet.runners]
    assert all(is_sleep_of(call.result(), "program-0") for call in calls)


def test_a_killed_local_process_costs_one_call(runner: RpcRunner, request_of: RequestOf) -> None:
    """Killing the local process loses its call and not the device."""
    process_id = runner._pool.call("os", "getpid")
    busy_secs = runner.meter.busy_secs
    call = runner.measure("run", request_of(sleeping.HANG), timeout_secs=5.0)
    wait_for(lambda: runner.meter.busy_secs > busy_secs + 0.5)
    os.kill(process_id, signal.SIGKILL)

    with pytest.raises(WorkerLost) as lost:
        call.result()
    assert not isinstance(lost.value, DeviceLost)
    assert runner.is_online
    result = runner.measure("run", request_of("program-0"), timeout_secs=30.0).result()
    assert is_sleep_of(result, "program-0")


def test_closing_ends_a_call_in_flight(
    servers: RpcServers, request_of: RequestOf, tmp_path: Path
) -> None:
    """Closing ends calls that run and calls that wait for their server."""
    with open_fleet(servers, tmp_path) as fleet:
        runner = fleet.runners[0]
        calls = [
            runner.measure("run", request_of(sleeping.HANG), timeout_secs=5.0) for _ in range(2)
        ]
        wait_for(lambda: runner.meter.busy_secs > 0.5)

    for call in calls:
        with pytest.raises((WorkerLost, CancelledError)):
            call.result()


def test_a_runner_that_was_closed_is_a_lost_device(
    servers: RpcServers, request_of: RequestOf, tmp_path: Path
) -> None:
    """A call on a closed runner raises DeviceLost, so that its round continues elsewhere."""
    with open_fleet(servers, tmp_path) as fleet:
        runner = fleet.runners[0]

    with pytest.raises(DeviceLost):
        runner.measure("run", request_of("program-0"), timeout_secs=5.0)


def test_an_executor_finds_a_fleet(servers: RpcServers, tmp_path: Path) -> None:
    """An executor has the fleet's runners, which run the artifacts of its builders."""
    settings = Settings("", tmp_path, sleeping.NAME, 1, rpc=servers.setting)

    with open_executor(settings) as executor:
        built = executor.build(BuildRequest(b"", sleeping.SPEC, "program-1"), timeout_secs=60.0)
        request = RunRequest(built.result().artifact, sleeping.SPEC, (), EVALUATOR)
        calls = [runner.measure("run", request, timeout_secs=30.0) for runner in executor.runners]
        results = [call.result() for call in calls]

    assert len(results) == 2
    assert all(is_sleep_of(result, "program-1") for result in results)


def test_without_a_tracker_there_is_no_fleet(tmp_path: Path) -> None:
    """Opening a fleet without a tracker raises DeviceLost and leaves no thread."""
    settings = Settings("", tmp_path, sleeping.NAME, 1, rpc=f"127.0.0.1:{free_port()}/nap")
    before = set(threading.enumerate())

    with pytest.raises(DeviceLost, match=r"cannot reach the RPC tracker at .*: .*refused"):
        RpcFleet(settings)

    assert "rpc-leases" not in {thread.name for thread in set(threading.enumerate()) - before}
