"""The executor of a Ray cluster, on real nodes of this machine."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines import faulty_toy, toy
from tests.engines.faults import CONTROL, Control, checksum
from tests.ray_rack import Rack
from tuner.devices.inventory import resource_of
from tuner.engines.base import BuildRequest, EvaluatorSettings, RunRequest, RunResult
from tuner.errors import DeviceLost, WorkerLost, WorkError
from tuner.executors.ray.executor import RayExecutor, RayRunner
from tuner.settings import Settings
from tuner.workers.base import CallTimeout

DEVICE = {resource_of("llvm", {"name": "toy"}): 1}
TASK = toy.make_task("heavy", weight=1, base_secs=1e-3)
# Beyond what a cluster would send along with the answer.
LARGE = "large " + "x" * 1_000_000


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    """Faults of the workers on all nodes."""
    path = tmp_path_factory.mktemp("control") / "control.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CONTROL, str(path))
        yield Control(path)


@pytest.fixture(scope="module")
def rack(control: Control, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """A head that builds, and two nodes whose CPU is a device."""
    control.inject()
    with Rack(tmp_path_factory.mktemp("rack")) as started:
        started.add("left", DEVICE)
        started.add("right", DEVICE)
        yield started


@pytest.fixture(scope="module")
def executor(rack: Rack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayExecutor]:
    """All of that, warm."""
    from tuner.executors.ray.slots import SlotTimeouts

    settings = settings_of(rack.address, tmp_path_factory.mktemp("coordinator"))
    with RayExecutor(
        settings, patience=SlotTimeouts(poll_secs=0.2, grace_secs=10.0, fetch_secs=5.0)
    ) as started:
        (warm,) = started.warm_up()
        warm.result()
        yield started


@pytest.fixture(autouse=True)
def _no_faults(control: Control) -> None:
    """Every test starts with workers that work."""
    control.inject()


def settings_of(address: str, folder: Path) -> Settings:
    """Settings of a coordinator of the cluster."""
    return Settings("", folder, faulty_toy.NAME, 2, ray_address=address)


def runner(executor: RayExecutor, node: str) -> RayRunner:
    """The device of a node, as soon as it is there."""

    def found() -> list[Any]:
        return [each for each in executor.runners if each.name.startswith(f"{node}/")]

    wait_until(lambda: bool(found()))
    (device,) = found()
    assert isinstance(device, RayRunner)
    return device


def built(executor: RayExecutor, trace: str = "{}") -> str:
    """An artifact of a trace."""
    call = executor.build(BuildRequest(TASK.ir, toy.SPEC, trace), timeout_secs=5.0)
    name: str = call.result().artifact
    return name


def request(artifact: str, reference: str = "") -> RunRequest:
    """Ask for one run."""
    return RunRequest(artifact, toy.SPEC, reference, EvaluatorSettings())


def run(executor: RayExecutor, node: str, trace: str = "{}", timeout_secs: float = 5.0) -> Any:
    """Build a trace somewhere, and run it on a node."""
    call = runner(executor, node).measure(
        "run", request(built(executor, trace)), timeout_secs=timeout_secs
    )
    return call.result()


def test_every_node_offers_its_device(executor: RayExecutor) -> None:
    """Devices are named by their node, and say what they are; the head builds."""
    names = sorted(each.name for each in executor.runners)

    assert names == ["left/cpu", "right/cpu"]
    assert executor.n_builders == 1
    for each in executor.runners:
        assert not each.shares_cores
        assert each.describe("llvm").result().device == {"name": "toy"}


def test_artifact_goes_from_node_to_node(executor: RayExecutor, tmp_path: Path) -> None:
    """Any device runs what was built elsewhere, against a reference of another device."""
    reference = str(tmp_path / "reference.npz")
    left, right = runner(executor, "left"), runner(executor, "right")
    unscheduled = built(executor, "")
    left.measure("reference", unscheduled, toy.SPEC, reference, timeout_secs=5.0).result()

    results = [
        each.measure("run", request(built(executor), reference), timeout_secs=5.0).result()
        for each in (left, right)
    ]

    assert results[0] == results[1]
    assert results[0].max_error == 0.0
    assert [path.name for path in tmp_path.iterdir()] == ["reference.npz"]


def test_artifact_does_not_pass_the_coordinator(executor: RayExecutor, rack: Rack) -> None:
    """A large one is kept by the node that built it and the node that ran it, nobody else."""
    import ray

    rack.add("builder", n_cpus=2)
    wait_until(lambda: executor.n_builders == 3)
    names = {each["NodeID"]: each["NodeName"] for each in ray.nodes()}
    places = set()
    for number in range(9):
        artifact = built(executor, f"{number} {LARGE}")
        result = runner(executor, "left").measure("run", request(artifact), timeout_secs=5.0)
        assert isinstance(result.result(), RunResult)
        part = executor._fleet._stock.artifacts[artifact].part
        nodes = ray.experimental.get_object_locations([part])[part]["node_ids"]
        places.add(frozenset(names[node] for node in nodes))
        executor.discard(artifact)

    assert frozenset({"builder", "left"}) in places
    assert places <= {frozenset({"builder", "left"}), frozenset({"head", "left"})}


def test_turns_name_several_artifacts(executor: RayExecutor) -> None:
    """A request for turns brings all that it names."""
    requests = [request(built(executor, str(number))) for number in range(3)]

    results = runner(executor, "left").measure("run_interleaved", requests, 2, timeout_secs=5.0)

    assert len(results.result()) == 3


def test_calls_can_be_awaited(executor: RayExecutor) -> None:
    """Many side by side, in an event loop of the caller's; answers come in their places."""

    async def work() -> list[Any]:
        requests = [BuildRequest(TASK.ir, toy.SPEC, str(number)) for number in range(20)]
        calls = [executor.build(each, timeout_secs=5.0) for each in requests]
        return [await call for call in calls]

    artifacts = asyncio.run(work())

    assert len({each.artifact for each in artifacts}) == 20


def test_who_stops_waiting_does_not_stop_the_call(executor: RayExecutor) -> None:
    """The call goes on after its loop was closed, and its answer is there."""
    call = executor.build(BuildRequest(TASK.ir, toy.SPEC, "late"), timeout_secs=5.0)

    async def give_up() -> None:
        await asyncio.wait_for(call, 0.0)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    assert call.result().artifact


def test_training_runs_on_a_builder(executor: RayExecutor) -> None:
    """A model that is trained there comes back as bytes."""
    assert isinstance(executor.train("random", 0, [], timeout_secs=30.0).result(), bytes)


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ("hang", CallTimeout, "timeout"),
        ("segfault", WorkerLost, "SIGSEGV"),
        # A pool may find its process dead before it hears of what.
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


@pytest.mark.parametrize("garbage", ["text", "huge", "unsendable", "unreceivable", "odd_artifact"])
def test_garbage_is_an_answer_or_an_error(
    executor: RayExecutor, control: Control, garbage: str
) -> None:
    """Whatever a worker answers, its agent serves the next call."""
    control.inject(build=[{"fault": garbage, "only": [checksum("bad")]}])
    call = executor.build(BuildRequest(TASK.ir, toy.SPEC, "bad"), timeout_secs=5.0)

    try:
        answer = call.result()
    except (WorkError, CallTimeout):
        answer = None

    assert not getattr(answer, "artifact", None)
    assert built(executor)


def test_runner_process_that_is_killed_is_replaced(executor: RayExecutor, rack: Rack) -> None:
    """Kill -9 of what times costs at most the call that it held."""
    assert isinstance(run(executor, "left"), RunResult)
    (worker,) = rack.workers("left")
    worker.kill()

    results = [_run_or_lost(executor, "left") for _ in range(3)]

    assert isinstance(results[-1], RunResult)


def test_agent_that_is_killed_is_replaced(
    executor: RayExecutor, rack: Rack, control: Control
) -> None:
    """Kill -9 of an agent loses its call; the device stays, and so do builders."""
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
    wait_until(lambda: not any(worker.is_running() for worker in workers))


def test_builder_agent_that_is_killed_is_replaced(executor: RayExecutor, rack: Rack) -> None:
    """Killing the builders of a node loses at most the calls that they are given first."""
    for agent in rack.agents("head"):
        agent.kill()
    names = []
    for number in range(8):
        try:
            names.append(built(executor, str(number)))
        except WorkerLost:
            continue

    assert len(names) >= 6


@pytest.mark.slow("20 s: a call has to time out")
def test_agent_that_hangs_is_replaced(executor: RayExecutor, rack: Rack) -> None:
    """One that is stopped gives no answer; its call is lost in time, and what it says later too."""
    artifact = built(executor)
    (agent,) = rack.agents("right")
    agent.suspend()

    with pytest.raises(WorkerLost, match="no answer within 11 s"):
        runner(executor, "right").measure("run", request(artifact), timeout_secs=1.0).result()

    assert isinstance(run(executor, "right"), RunResult)
    wait_until(lambda: not agent.is_running())


def test_node_that_is_added_measures(executor: RayExecutor, rack: Rack) -> None:
    """A device that comes later is there within seconds, and leaves with its node."""
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


@pytest.mark.slow("20 s: Ray notices a lost node late")
def test_artifact_of_a_lost_node_is_built_again(executor: RayExecutor, rack: Rack) -> None:
    """What a dead node built is built elsewhere, under the same name, when it is to run."""
    n_builders = executor.n_builders
    rack.add("brief", n_cpus=4)
    wait_until(lambda: executor.n_builders == n_builders + 4)
    artifacts = [built(executor, f"{number} {LARGE}") for number in range(14)]
    nodes = {executor._fleet._stock.artifacts[name].node_id for name in artifacts}
    rack.kill("brief")

    device = runner(executor, "left")
    results = [device.measure("run", request(each), timeout_secs=5.0) for each in artifacts]

    assert len(nodes) > 1
    assert [type(_answer(result)) for result in results] == [RunResult] * 14


def test_node_with_another_release_is_left_out(
    executor: RayExecutor,
    rack: Rack,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node where something else is installed gets no calls; its name and both are told."""
    monkeypatch.setattr("tuner.executors.ray.slots.release", lambda: "tuner 9.9")
    rack.add("odd", DEVICE)
    wait_until(lambda: "left out" in caplog.text)

    assert "node odd is left out: it has tuner 0.1.0 (" in caplog.text
    assert "here is tuner 9.9" in caplog.text
    assert not any(each.name.startswith("odd/") for each in executor.runners)
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


def wait_until(is_so: Callable[[], bool], secs: float = 120.0) -> None:
    """Poll until something is so; nodes take long to start on a machine that is busy."""
    deadline = time.monotonic() + secs
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
