"""Simulated builders and devices keep the contracts of executors and runners."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.simulation import kernels
from benchmarks.simulation.calls import World
from benchmarks.simulation.clock import VirtualClock
from benchmarks.simulation.executor import SimulatedExecutor
from benchmarks.simulation.kernels import Kernel
from benchmarks.simulation.networks import SPEC
from benchmarks.simulation.scenario import Costs, Faults, Scenario
from tuner.engines.base import (
    BuildRequest,
    EvaluatorSettings,
    ReferenceRequest,
    RunRequest,
    RunResult,
    SearchRequest,
)
from tuner.errors import DeviceLost, WorkerLost, WorkError
from tuner.workers.base import CallTimeout

KERNEL = Kernel((2e-3,), cost=1.0)
CALM = Faults(0.0, 0.0, 0.0, 0.0, 0.0, 60.0, 0.0)
SCENARIO = Scenario(
    n_devices=2, builders=2, costs=Costs(1.0, 10.0, 5.0), faults=CALM, secs=1e4, n_tasks=20
)
REQUEST = SearchRequest(KERNEL.as_ir(0), SPEC, (), b"", 4, 0, 0, 1)
TRACE = kernels.propose(REQUEST, 64)[0].trace
BUILD = BuildRequest(b"", SPEC, TRACE)
RUN = RunRequest(kernels.artifact_of(TRACE), SPEC, (), EvaluatorSettings())

Main = Callable[[World, SimulatedExecutor], Coroutine[Any, Any, None]]


def act(main: Main, faults: Faults = CALM) -> SimulatedExecutor:
    """Run a coroutine in a world whose clock advances by waits only."""
    world = World(replace(SCENARIO, faults=faults), VirtualClock(lambda: 0.0))
    executor = SimulatedExecutor(world)
    with asyncio.Runner(loop_factory=world.make_loop) as runner:
        runner.run(main(world, executor))
    return executor


def test_builders_work_concurrently_up_to_their_number() -> None:
    """Three builds on two builders take twice as long as one."""

    async def main(world: World, executor: SimulatedExecutor) -> None:
        calls = [executor.build(BUILD, timeout_secs=60.0) for _ in range(3)]
        results = [await call for call in calls]
        assert world.clock.now() == pytest.approx(20.0)
        assert {result.artifact for result in results} == {RUN.artifact}

    act(main)


def test_the_time_of_a_search_grows_with_its_candidates() -> None:
    """The candidates are those of the task."""

    async def main(world: World, executor: SimulatedExecutor) -> None:
        candidates = await executor.submit("propose", REQUEST, timeout_secs=60.0)
        assert world.clock.now() == pytest.approx(4.0)
        assert candidates[0].trace == TRACE

    act(main)


def test_devices_work_concurrently_and_serve_one_call_at_a_time() -> None:
    """Two runs on one device take as long as two on each of two devices, and keep it busy."""

    async def main(world: World, executor: SimulatedExecutor) -> None:
        one, other = executor.devices
        calls = [
            device.measure("run", RUN, timeout_secs=20.0)
            for device in (one, other)
            for _ in range(2)
        ]
        results = [await call for call in calls]
        assert world.clock.now() == pytest.approx(10.0)
        assert one.meter.busy_secs == other.meter.busy_secs == pytest.approx(10.0)
        assert all(isinstance(result, RunResult) and result.run_secs for result in results)

    assert act(main).devices[0].outcomes == {"timed": 2}


def test_a_reference_is_made_by_a_builder() -> None:
    """It is the content of a file."""

    async def main(_: World, executor: SimulatedExecutor) -> None:
        request = ReferenceRequest(b"", SPEC, "real", 0)
        assert await executor.submit("reference", request, timeout_secs=300.0)

    act(main)


def test_finalists_are_timed_in_turns() -> None:
    """Each turn gives a sample, and the call takes the time of all turns."""

    async def main(world: World, executor: SimulatedExecutor) -> None:
        timed = await executor.devices[0].measure(
            "run_interleaved", [RUN, RUN], 5, timeout_secs=200.0
        )
        assert [len(result.run_secs) for result in timed] == [5, 5]
        assert world.clock.now() == pytest.approx(50.0)

    act(main)


@pytest.mark.parametrize(
    ("faults", "expected", "secs"),
    [
        (replace(CALM, hangs=1.0), CallTimeout, 20.0),
        (replace(CALM, worker_deaths=1.0), WorkerLost, None),
    ],
)
def test_a_call_that_goes_wrong_raises(
    faults: Faults, expected: type[Exception], secs: float | None
) -> None:
    """A hung kernel costs its time-out, a dead worker the time of its work."""

    async def main(world: World, executor: SimulatedExecutor) -> None:
        with pytest.raises(expected):
            await executor.devices[0].measure("run", RUN, timeout_secs=20.0)
        assert world.clock.now() <= 20.0
        assert secs is None or world.clock.now() == pytest.approx(secs)

    act(main, faults)


def test_failures_are_data_and_are_counted() -> None:
    """A failed build and a failed run are results with an error."""

    async def main(_: World, executor: SimulatedExecutor) -> None:
        built = await executor.build(BUILD, timeout_secs=60.0)
        ran = await executor.devices[0].measure("run", RUN, timeout_secs=20.0)
        assert built.error_text
        assert ran.error_kind == "run_error"

    executor = act(main, replace(CALM, build_errors=1.0, run_errors=1.0))

    assert executor.outcomes == {"build_error": 1}
    assert executor.devices[0].outcomes == {"run_error": 1}


def test_a_lost_device_takes_its_calls_along_and_comes_back() -> None:
    """While it is lost it is not among the runners, and calls to it raise."""

    async def main(_: World, executor: SimulatedExecutor) -> None:
        device = executor.devices[0]
        call = device.measure("run", RUN, timeout_secs=20.0)
        await asyncio.sleep(2.0)
        executor.lose(device)
        with pytest.raises(DeviceLost, match="device-0 was lost"):
            await call
        with pytest.raises(DeviceLost):
            await device.measure("run", RUN, timeout_secs=20.0)
        assert list(executor.runners) == [executor.devices[1]]
        await asyncio.sleep(60.0)
        assert list(executor.runners) == executor.devices
        assert (await device.measure("run", RUN, timeout_secs=20.0)).run_secs
        assert device.away_secs() == pytest.approx(60.0)
        assert device.meter.busy_secs == pytest.approx(7.0)

    assert act(main).devices[0].outcomes == {"timed": 1}


def test_devices_are_lost_at_the_given_rate() -> None:
    """Each is lost once an hour on average."""

    async def main(_: World, executor: SimulatedExecutor) -> None:
        await asyncio.sleep(400 * 3600.0)
        away = sum(device.away_secs() for device in executor.devices)
        assert away == pytest.approx(2 * 400 * 60.0, rel=0.2)

    act(main, replace(CALM, device_losses=1.0))


def test_slow_devices_take_longer_and_report_higher_latencies() -> None:
    """Both are three times as large."""

    async def main(world: World, executor: SimulatedExecutor) -> None:
        result = await executor.devices[0].measure("run", RUN, timeout_secs=20.0)
        assert result.run_secs[0] == pytest.approx(3.0 * kernels.run(RUN.artifact)[0])
        assert world.clock.now() == pytest.approx(15.0)

    act(main, replace(CALM, slow_devices=1.0))


def test_a_device_describes_a_target_with_its_fingerprint() -> None:
    """Devices of a kind have the same fingerprint."""

    async def main(_: World, executor: SimulatedExecutor) -> None:
        one, other = [await device.describe(SPEC) for device in executor.devices]
        assert one == other
        assert not one.problem

    act(main)


def test_a_call_has_no_result_outside_of_the_loop() -> None:
    """Waiting would never end, because no time passes."""

    async def main(_: World, executor: SimulatedExecutor) -> None:
        call = executor.build(BUILD, timeout_secs=60.0)
        with pytest.raises(WorkError, match="await a simulated call"):
            call.result()
        assert await call == call.result()

    act(main)
