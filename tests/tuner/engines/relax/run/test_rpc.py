"""Kernels run on a device behind a real RPC server, called as by a worker."""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from onnx import helper

from tests.rpc_servers import RpcServers
from tests.tuner.engines.relax.conftest import Save, draw
from tuner import cost_models
from tuner.devices.runners.tracker import Tracker
from tuner.engines.base import (
    BuildRequest,
    EvaluatorSettings,
    ExtractedTask,
    ReferenceRequest,
    RemoteAnswer,
    RemoteServer,
    RunRequest,
    SearchRequest,
    TargetInfo,
)
from tuner.engines.linker import find_linker
from tuner.engines.relax import worker
from tuner.engines.verification import references
from tuner.errors import TargetError, WorkError

pytestmark = pytest.mark.slow("starts servers and a tracker for each case")

BOARD = '{"kind":"llvm","mtriple":"aarch64-linux-gnu","mcpu":"cortex-a72","num-cores":4}'
EVALUATOR = EvaluatorSettings(min_repeat_ms=0)
_EM_AARCH64 = 183


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RpcServers]:
    """A tracker and a server."""
    with RpcServers(tmp_path_factory.mktemp("servers"), key="host") as started:
        started.start_server("only")
        started.wait_for(1)
        yield started


@pytest.fixture
def matmul(save: Save, target: TargetInfo) -> ExtractedTask:
    """A matrix product whose run time exceeds the noise."""
    nodes = [helper.make_node("MatMul", ["data", "w"], ["y"])]
    model = save(nodes, (128, 256), {"w": draw(256, 256)})
    return max(worker.extract(model, target.spec).tasks, key=lambda task: task.flop)


def call(servers: RpcServers, function: str, *args: Any, secs: int = 60) -> RemoteAnswer:
    """Lease the server, and call a function there."""
    with closing(Tracker(servers.address)) as tracker:
        lent = tracker.request()
    server = RemoteServer(lent.host, lent.port, lent.match_key, secs)
    return worker.call_remotely(server, function, *args)


def build(task: ExtractedTask, spec: str, trace: str, out: Path) -> str:
    """Build an artifact."""
    built = worker.build(BuildRequest(task.ir, spec, trace, str(out)))
    assert built.artifact, built.error_text
    return built.artifact


def propose(task: ExtractedTask, spec: str, n: int) -> list[str]:
    """Search traces."""
    model = cost_models.create("random", 0).save()
    request = SearchRequest(task.ir, spec, (), model, n, 16, 1, seed=5)
    return [candidate.trace for candidate in worker.propose(request)]


def test_kernels_run_remotely_as_locally(
    servers: RpcServers, matmul: ExtractedTask, target: TargetInfo, tmp_path: Path
) -> None:
    """They are verified against the same reference, in times within a factor of 50."""
    kept = str(tmp_path / "reference.npz")
    asked = ReferenceRequest(matmul.ir, target.spec, "real", 1)
    Path(kept).write_bytes(worker.reference(asked))
    (trace,) = propose(matmul, target.spec, 1)
    artifact = build(matmul, target.spec, trace, tmp_path / "candidate")
    request = RunRequest(artifact, target.spec, (kept,), EVALUATOR)
    there = call(servers, "run", request).value
    here = worker.run(request)

    assert there.error_kind is here.error_kind is None
    assert there.max_error == here.max_error
    assert here.run_secs is not None
    assert 0.02 < median(there.run_secs) / median(here.run_secs) < 50.0


def test_a_wrong_output_is_a_wrong_result(
    servers: RpcServers, matmul: ExtractedTask, target: TargetInfo, tmp_path: Path
) -> None:
    """The comparison is the same as on the local device."""
    kept = tmp_path / "reference.npz"
    artifact = build(matmul, target.spec, "", tmp_path / "unscheduled")
    kept.write_bytes(worker.reference(ReferenceRequest(matmul.ir, target.spec, "real", 1)))
    reference = references.load(str(kept))
    reference.outputs[0].values[-1, -1] += 1e-3
    kept.write_bytes(references.dump(reference))

    result = call(servers, "run", RunRequest(artifact, target.spec, (str(kept),), EVALUATOR)).value

    assert result.error_kind == "wrong_result"


def test_an_unreadable_artifact_raises(
    servers: RpcServers, target: TargetInfo, tmp_path: Path
) -> None:
    """It raises as on the local device."""
    request = RunRequest(str(tmp_path / "missing"), target.spec, (), EVALUATOR)

    with pytest.raises(FileNotFoundError):
        call(servers, "run", request)
    servers.wait_for(1)


def test_a_session_that_is_not_granted_is_refused(target: TargetInfo) -> None:
    """The attempt ends within the time limit of connecting."""
    server = RemoteServer("127.0.0.1", 1, "host:0.5", 10)

    answer = worker.call_remotely(server, "describe_target", target.spec)

    assert answer.problem == "refused"
    assert answer.text


def test_the_cpu_of_the_server_is_detected(servers: RpcServers) -> None:
    """A device with TVM's compiler is detected, without a name."""
    info = call(servers, "describe_target", "llvm").value

    described = json.loads(info.spec)
    assert described["mcpu"] == json.loads(worker.describe_target("llvm").spec)["mcpu"]
    assert described["num-cores"] == info.device["n_threads"] >= 1
    assert "name" not in info.device
    assert info.problem == ""


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("cuda:sm_80", "the remote device has no CUDA device"),
        (BOARD, f"it is code for aarch64, the remote device is {platform.machine()}"),
    ],
)
def test_a_target_of_another_device_is_a_problem(
    servers: RpcServers, spec: str, problem: str
) -> None:
    """It is not an error, because another key may serve the target."""
    assert call(servers, "describe_target", spec).value.problem == problem


def test_an_absent_gpu_cannot_be_detected(servers: RpcServers) -> None:
    """The error is a wrong request."""
    with pytest.raises(TargetError, match="the remote device has no CUDA device"):
        call(servers, "describe_target", "cuda")


def test_candidates_for_another_machine_build_here(save: Save, tmp_path: Path) -> None:
    """They are linked for that machine, and cannot run here."""
    try:
        find_linker("aarch64")
    except WorkError as error:
        pytest.skip(str(error))
    info = worker.describe_target(BOARD)
    model = save([helper.make_node("MatMul", ["data", "w"], ["y"])], (16, 64), {"w": draw(64, 48)})
    task = max(worker.extract(model, info.spec).tasks, key=lambda task: task.flop)

    for number, trace in enumerate(["", *propose(task, info.spec, 2)]):
        artifact = build(task, info.spec, trace, tmp_path / str(number))
        header = (Path(artifact) / "kernel.so").read_bytes()[:20]
        assert int.from_bytes(header[18:20], "little") == _EM_AARCH64


def test_a_missing_linker_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message contains the name of the package."""
    monkeypatch.setitem(os.environ, "PATH", "")
    find_linker.cache_clear()
    try:
        with pytest.raises(WorkError, match="apt install binutils-aarch64-linux-gnu, or lld"):
            find_linker("aarch64")
    finally:
        find_linker.cache_clear()
