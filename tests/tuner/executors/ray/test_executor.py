"""The executor of a Ray cluster, on real nodes of this machine."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines import faulty_toy, toy
from tests.engines.faults import CONTROL, Control, checksum
from tests.ray_rack import Rack
from tests.waiting import wait_for
from tuner.devices.inventory import resource_of
from tuner.engines.base import (
    BuildRequest,
    EvaluatorSettings,
    ReferenceRequest,
    RunRequest,
    RunResult,
)
from tuner.errors import DeviceLost, WorkerLost, WorkError
from tuner.executors.ray.executor import RayExecutor, RayRunner
from tuner.settings import Settings
from tuner.workers.base import CallTimeout

pytestmark = pytest.mark.slow("starts a cluster of Ray")

DEVICE = {resource_of("llvm", {"name": "toy"}): 1}
TASK = toy.make_task("heavy", weight=1, base_secs=1e-3)
# Larger than what Ray sends along with the result of a task.
LARGE = "large " + "x" * 1_000_000


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    """Control of the faults of the workers on all nodes."""
    path = tmp_path_factory.mktemp("control") / "control.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CONTROL, str(path))
        yield Control(path)


@pytest.fixture(scope="module")
def rack(control: Control, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """A head that builds, and two nodes whose CPU is a device."""
    control.inject()
    # Faults are read from a file that no worker may read.
    environ = {"TUNER_WORKER_SANDBOX": "off"}
    with Rack(tmp_path_factory.mktemp("rack"), environ=environ) as started:
        started.add("left", DEVICE)
        started.add("right", DEVICE)
        yield started


@pytest.fixture(scope="module")
def executor(rack: Rack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayExecutor]:
    """An executor of that cluster whose agents are ready."""
    from tuner.executors.ray.supervisor import AgentTimeouts

    settings = settings_of(rack.address, tmp_path_factory.mktemp("coordinator"))
    timeouts = AgentTimeouts(poll_secs=0.2, grace_secs=10.0, fetch_secs=5.0)
    with RayExecutor(settings, timeouts=timeouts) as started:
        (warm,) = started.warm_up()
        warm.result()
        yield started


@pytest.fixture(autouse=True)
def _no_faults(control: Control) -> None:
    """Start every test without faults."""
    control.inject()


def settings_of(address: str, folder: Path) -> Settings:
    """Return the settings of a coordinator of the cluster."""
    return Settings("", folder, faulty_toy.NAME, 2, worker_sandbox="off", ray_address=address)


def runner(executor: RayExecutor, node: str) -> RayRunner:
    """Return the runner of a node's device as soon as it is available."""

    def runners() -> list[Any]:
        return [runner for runner in executor.runners if runner.name.startswith(f"{node}/")]

    wait_for(lambda: bool(runners()), 120.0)
    (device,) = runners()
    assert isinstance(device, RayRunner)
    return device


def built(executor: RayExecutor, trace: str = "{}") -> str:
    """Build a trace, and return its artifact."""
    call = executor.build(BuildRequest(TASK.ir, toy.SPEC, trace), timeout_secs=5.0)
    name: str = call.result().artifact
    return name


def request(artifact: str, *references: str) -> RunRequest:
    """Return a request for one run."""
    return RunRequest(artifact, toy.SPEC, references, EvaluatorSettings())


def run(executor: RayExecutor, node: str, trace: str = "{}", timeout_secs: float = 5.0) -> Any:
    """Build a trace on any node, and run it on one."""
    call = runner(executor, node).measure(
        "run", request(built(executor, trace)), timeout_secs=timeout_secs
    )
    return call.result()


def test_every_node_offers_its_device(executor: RayExecutor) -> None:
    """Devices are named by their node and describe themselves; the head builds."""
    names = sorted(runner.name for runner in executor.runners)

    assert names == ["left/cpu", "right/cpu"]
    assert executor.n_builders == 1
    for runner in executor.runners:
        assert not runner.shares_cores
        assert runner.describe("llvm").result().device == {"name": "toy"}


def test_artifact_goes_from_node_to_node(executor: RayExecutor, tmp_path: Path) -> None:
    """A device runs an artifact of another node, against the references of the coordinator."""
    files = [tmp_path / "whole.npz", tmp_path / "real.npz"]
    asked = ReferenceRequest(TASK.ir, toy.SPEC, "real", 0)
    for file in files:
        file.write_bytes(executor.submit("reference", asked, timeout_secs=5.0).result())

    results = [
        runner(executor, node)
        .measure("run", request(built(executor), *map(str, files)), timeout_secs=5.0)
        .result()
        for node in ("left", "right")
    ]

    assert results[0] == results[1]
    assert results[0].max_error == 0.0
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_artifact_does_not_pass_the_coordinator(executor: RayExecutor, rack: Rack) -> None:
    """A large one is held only by the node that built it and the node that ran it."""
    import ray

    rack.add("builder", n_cpus=2)
    wait_for(lambda: executor.n_builders == 3, 120.0)
    names = {node["NodeID"]: node["NodeName"] for node in ray.nodes()}
    holders = set()
    for number in range(9):
        artifact = built(executor, f"{number} {LARGE}")
        result = runner(executor, "left").measure("run", request(artifact), timeout_secs=5.0)
        assert isinstance(result.result(), RunResult)
        ref = executor._fleet._artifacts.artifacts[artifact].object_ref
        nodes = ray.experimental.get_object_locations([ref])[ref]["node_ids"]
        holders.add(frozenset(names[node] for node in nodes))
        executor.discard(artifact)

    assert frozenset({"builder", "left"}) in holders
    assert holders <= {frozenset({"builder", "left"}), frozenset({"head", "left"})}


def test_interleaved_runs_name_several_artifacts(executor: RayExecutor) -> None:
    """All artifacts of a call are sent along with it."""
    requests = [request(built(executor, str(number))) for number in range(3)]

    results = runner(executor, "left").measure("run_interleaved", requests, 2, timeout_secs=5.0)

    assert len(results.result()) == 3


def test_calls_can_be_awaited(executor: RayExecutor) -> None:
    """The caller's event loop awaits many calls at once, each with its own result."""

    async def work() -> list[Any]:
        requests = [BuildRequest(TASK.ir, toy.SPEC, str(number)) for number in range(20)]
        calls = [executor.build(request, timeout_secs=5.0) for request in requests]
        return [await call for call in calls]

    artifacts = asyncio.run(work())

    assert len({result.artifact for result in artifacts}) == 20


def test_cancelled_wait_does_not_stop_the_call(executor: RayExecutor) -> None:
    """The call goes on after the loop of its caller was closed, and has a result."""
    call = executor.build(BuildRequest(TASK.ir, toy.SPEC, "late"), timeout_secs=5.0)

    async def give_up() -> None:
        await asyncio.wait_for(call, 0.0)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    assert call.result().artifact


def test_training_runs_on_a_builder(executor: RayExecutor) -> None:
    """The trained model is returned as bytes."""
    assert isinstance(executor.train("random", 0, [], timeout_secs=30.0).result(), bytes)


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ("hang", CallTimeout, "the call took longer than"),
        ("segfault", WorkerLost, "SIGSEGV"),
        # A pool may notice the death of its process before it knows the signal.
        ("kill", WorkerLost, "SIGKILL|an idle worker was killed"),
        ("exit", WorkerLost, "status 7"),
        ("escape", WorkError, "InjectedError: injected"),
    ],
)
@pytest.mark.parametrize("function", ["build", "run"])
def test_fault_of_a_worker_is_reported_as_on_one_machine(
    executor: RayExecutor, control: Control, function: str, fault: str, error: type, text: str
) -> None:
    """A call that hangs or dies costs its worker, not the agent; the next call is served."""
    control.inject(**{function: [{"fault": fault, "only": [checksum("bad")]}]})

    with pytest.raises(error, match=text) as caught:
        run(executor, "left", "bad", timeout_secs=4.0)

    if isinstance(caught.value, WorkerLost):
        assert caught.value.crashed is (fault == "segfault")
    assert isinstance(run(executor, "left"), RunResult)


@pytest.mark.parametrize("fault", ["text", "huge", "unsendable", "unreceivable", "odd_artifact"])
def test_malformed_result_is_returned_or_an_error(
    executor: RayExecutor, control: Control, fault: str
) -> None:
    """After any result of a worker its agent serves the next call."""
    control.inject(build=[{"fault": fault, "only": [checksum("bad")]}])
    call = executor.build(BuildRequest(TASK.ir, toy.SPEC, "bad"), timeout_secs=5.0)

    try:
        answer = call.result()
    except (WorkError, CallTimeout):
        answer = None

    assert not getattr(answer, "artifact", None)
    assert built(executor)


def test_runner_process_that_is_killed_is_replaced(executor: RayExecutor, rack: Rack) -> None:
    """Kill -9 of a runner process costs at most the call that it held."""
    assert isinstance(run(executor, "left"), RunResult)
    (worker,) = rack.workers("left")
    worker.kill()

    results = [_run_or_lost(executor, "left") for _ in range(3)]

    assert isinstance(results[-1], RunResult)


def test_agent_that_is_killed_is_replaced(
    executor: RayExecutor, rack: Rack, control: Control
) -> None:
    """Kill -9 of an agent loses its call; the device and the builders stay."""
    control.inject(run=[{"fault": "hang", "only": [checksum("slow")]}])
    device = runner(executor, "left")
    call = device.measure("run", request(built(executor, "slow")), timeout_secs=30.0)
    time.sleep(1.0)
    assert not call.future.done()
    workers = rack.workers("left")
    (agent,) = rack.agents("left")
    agent.kill()

    with pytest.raises(WorkerLost, match="agent on left was killed") as caught:
        call.result()

    assert not isinstance(caught.value, DeviceLost)
    assert not caught.value.crashed
    assert device in executor.runners
    assert isinstance(run(executor, "left"), RunResult)
    wait_for(lambda: not any(worker.is_running() for worker in workers), 120.0)


def test_builder_agent_that_is_killed_is_replaced(executor: RayExecutor, rack: Rack) -> None:
    """Killing the builders of a node loses at most their first calls."""
    for agent in rack.agents("head"):
        agent.kill()
    names = []
    for number in range(8):
        try:
            names.append(built(executor, str(number)))
        except WorkerLost:
            continue

    assert len(names) >= 6


def test_agent_that_hangs_is_replaced(executor: RayExecutor, rack: Rack) -> None:
    """A stopped agent gives no answer; its call is lost after the grace time."""
    artifact = built(executor)
    (agent,) = rack.agents("right")
    agent.suspend()

    with pytest.raises(WorkerLost, match="no answer within 11 s"):
        runner(executor, "right").measure("run", request(artifact), timeout_secs=1.0).result()

    assert isinstance(run(executor, "right"), RunResult)
    wait_for(lambda: not agent.is_running(), 120.0)


def test_node_that_is_added_measures(executor: RayExecutor, rack: Rack) -> None:
    """A new device is available within seconds, and is lost with its node."""
    rack.add("third", DEVICE)
    device = runner(executor, "third")
    artifact = built(executor)
    assert isinstance(
        device.measure("run", request(artifact), timeout_secs=5.0).result(), RunResult
    )

    rack.kill("third")

    with pytest.raises(DeviceLost, match="third/cpu"):
        device.measure("run", request(artifact), timeout_secs=5.0).result()
    assert device not in executor.runners
    started = time.monotonic()
    with pytest.raises(DeviceLost):
        device.measure("run", request(artifact), timeout_secs=600.0).result()
    assert time.monotonic() - started < 5.0
    assert isinstance(run(executor, "left"), RunResult)


def test_artifact_of_a_lost_node_is_built_again(executor: RayExecutor, rack: Rack) -> None:
    """An artifact keeps its name; another node builds it again when it is to run."""
    n_builders = executor.n_builders
    rack.add("brief", n_cpus=4)
    wait_for(lambda: executor.n_builders == n_builders + 4, 120.0)
    artifacts = [built(executor, f"{number} {LARGE}") for number in range(14)]
    nodes = {executor._fleet._artifacts.artifacts[name].node_id for name in artifacts}
    rack.kill("brief")

    device = runner(executor, "left")
    results = [device.measure("run", request(name), timeout_secs=5.0) for name in artifacts]

    assert len(nodes) > 1
    assert [type(_answer(result)) for result in results] == [RunResult] * 14


def test_node_with_another_release_is_left_out(
    executor: RayExecutor,
    rack: Rack,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node with another release gets no calls; a warning names it and both releases."""
    monkeypatch.setattr("tuner.executors.ray.supervisor.release", lambda: "tuner 9.9")
    rack.add("odd", DEVICE)
    wait_for(lambda: "left out" in caplog.text, 120.0)

    assert "node odd is left out: it has tuner 0.1.0 (" in caplog.text
    assert "the coordinator has tuner 9.9" in caplog.text
    assert not any(runner.name.startswith("odd/") for runner in executor.runners)
    rack.kill("odd")


def _answer(call: Any) -> Any:
    try:
        return call.result()
    except WorkerLost as error:
        return error


def _run_or_lost(executor: RayExecutor, node: str) -> Any:
    try:
        return run(executor, node)
    except WorkerLost as error:
        return error
