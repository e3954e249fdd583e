"""Workers of agents on a Ray cluster are confined, as their nodes' settings require."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import toy
from tests.ray_rack import Rack
from tuner.devices.inventory import resource_of
from tuner.engines.base import (
    BuildRequest,
    EvaluatorSettings,
    ReferenceRequest,
    RunRequest,
    SearchRequest,
)
from tuner.executors.ray.executor import RayExecutor
from tuner.settings import Settings
from tuner.workers.confinement import sandbox

pytestmark = [
    pytest.mark.slow("starts a cluster of Ray"),
    pytest.mark.skipif(bool(sandbox.shortcoming()), reason="the kernel cannot confine workers"),
]

DEVICE = {resource_of("llvm", {"name": "toy"}): 1}
TASK = toy.make_task("heavy", weight=1, base_secs=1e-3)


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """A head that builds, and a node whose CPU is a device, which require the sandbox."""
    environ = {"TUNER_WORKER_SANDBOX": "required"}
    with Rack(tmp_path_factory.mktemp("rack"), environ=environ) as started:
        started.add("device", DEVICE)
        yield started


@pytest.fixture(scope="module")
def executor(rack: Rack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayExecutor]:
    """An executor of that cluster whose agents are ready."""
    folder = tmp_path_factory.mktemp("coordinator")
    with RayExecutor(Settings("", folder, toy.NAME, 1, ray_address=rack.address)) as started:
        (warm,) = started.warm_up()
        warm.result()
        yield started


def test_a_round_runs_in_confined_workers(
    executor: RayExecutor, rack: Rack, tmp_path: Path
) -> None:
    """Search, reference, build, run and training work, and every worker is confined."""
    model = executor.train("random", 0, [], timeout_secs=30.0).result()
    asked = SearchRequest(TASK.ir, toy.SPEC, (), model, 1, 8, 1, 1)
    (candidate,) = executor.submit("propose", asked, timeout_secs=30.0).result()
    reference = tmp_path / "reference.npz"
    content = executor.submit(
        "reference", ReferenceRequest(TASK.ir, toy.SPEC, "real", 0), timeout_secs=30.0
    ).result()
    reference.write_bytes(content)
    build = BuildRequest(TASK.ir, toy.SPEC, candidate.trace)
    artifact = executor.build(build, timeout_secs=30.0).result().artifact
    (device,) = executor.runners
    request = RunRequest(artifact, toy.SPEC, (str(reference),), EvaluatorSettings())

    result = device.measure("run", request, timeout_secs=30.0).result()

    assert result.max_error == 0.0 or result.error_text == "the toy broke"
    workers = [*rack.workers("head"), *rack.workers("device")]
    assert len(workers) == 2
    for worker in workers:
        status = Path(f"/proc/{worker.pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status
        assert "Seccomp:\t2" in status
