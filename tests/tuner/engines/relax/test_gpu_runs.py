"""Measurement on a GPU, with a stub driver that runs no kernel."""

from dataclasses import replace
from pathlib import Path

import pytest
from tvm import te

from tests.gpu_compilers import needs_nvrtc
from tests.tuner.engines.relax import gpu_cases
from tuner.engines.base import (
    BuildRequest,
    EvaluatorSettings,
    ReferenceRequest,
    RunRequest,
    RunResult,
    TargetInfo,
)
from tuner.engines.relax import worker
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.target import cudart
from tuner.errors import RequestError, TargetError, WorkerLost
from tuner.workers.pool import Pool

ENGINE = "tuner.engines.relax.worker"
pytestmark = needs_nvrtc


def ir() -> bytes:
    """Return a workload that doubles its input."""
    x = te.placeholder((256,), "float32", name="x")
    y = te.compute((256,), lambda i: x[i] * 2.0, name="y")
    return workloads.dump(workloads.as_workload(te.create_prim_func([x, y])))


def product(n_rows: int, n_steps: int, n_columns: int) -> bytes:
    """Return a product of a matrix and weights."""
    x = te.placeholder((n_rows, n_steps), "float32", name="x")
    weights = te.placeholder((n_steps, n_columns), "float32", name="weights")
    k = te.reduce_axis((0, n_steps), name="k")
    y = te.compute((n_rows, n_columns), lambda i, j: te.sum(x[i, k] * weights[k, j], k), name="y")
    return workloads.dump(workloads.as_workload(te.create_prim_func([x, weights, y])))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A kernel of the workload."""
    out = tmp_path_factory.mktemp("artifact")
    built = worker.build(
        BuildRequest(ir(), worker.describe_target("cuda:sm_90").spec, "", str(out))
    )
    assert built.error_text == ""
    return built.artifact


def describe(pool: Pool, spec: str) -> TargetInfo:
    """Describe a target in the process that sees the GPU."""
    info: TargetInfo = pool.call(ENGINE, "describe_target", spec, timeout_secs=120.0)
    return info


def request_of(artifact: str, target: TargetInfo) -> RunRequest:
    """Return a request to time a kernel without comparison."""
    settings = EvaluatorSettings(min_repeat_ms=0, timeout_secs=60.0)
    return RunRequest(artifact, target.spec, (), settings)


def run(pool: Pool, request: RunRequest, **environ: str) -> RunResult:
    """Run a kernel in the process that sees the GPU, with some variables for the stub."""
    result: RunResult = pool.call(
        *(gpu_cases.__name__, "run_kernel", request, environ),
        returns=RunResult,
        timeout_secs=120.0,
    )
    return result


def graph_sizes(log: Path) -> list[int]:
    """Return the number of kernels of each graph launch in a log of the stub."""
    _, *launches = log.read_text().split("\ncudaGraphLaunch ")
    return [each.count("\nreplay ") for each in launches]


def test_visible_gpu_is_described(pool: Pool) -> None:
    """The target has the limits and the fingerprint of the GPU, and its incompatibilities."""
    info = describe(pool, "cuda")

    assert '"arch":"sm_90"' in info.spec
    assert f'"l2_cache_size_bytes":{50 << 20}' in info.spec
    assert info.problem == ""
    properties = {"name": "NVIDIA Test", "capability": "9.0", "driver": "580.65.06", "cuda": "13.0"}
    assert properties.items() <= info.device.items()
    other = describe(pool, "cuda:sm_80")
    assert "compute capability 9.0" in other.problem
    assert other.device["name"] == "sm_80"


def test_peaks_of_the_visible_gpu(pool: Pool) -> None:
    """They are computed from its clocks and units; code for another GPU has the same device."""
    peaks = pool.call(ENGINE, "measure_peaks", describe(pool, "cuda").spec, timeout_secs=60.0)

    assert peaks.memory_bandwidth == 2 * 1980e6 * 1024 / 8
    assert peaks.cache_bytes == 50 << 20
    assert peaks.flops["float16"] == pytest.approx(1024 * 1980e6 * 4096, rel=0.01)


def test_runtime_is_loaded_where_there_is_a_driver(pool: Pool) -> None:
    """It is loaded by its name if possible, else from the Python packages."""
    (packaged,) = [path for path in cudart._packaged() if Path(path).is_file()]

    assert pool.call(cudart.__name__, "preload", timeout_secs=60.0) == "libcudart.so.13"
    assert packaged.endswith("nvidia/cu13/lib/libcudart.so.13")


def test_hidden_gpu_is_not_described(pool: Pool) -> None:
    """CUDA_VISIBLE_DEVICES may hide all GPUs."""
    with pytest.raises(TargetError, match="no CUDA device"):
        pool.call(gpu_cases.__name__, "describe_hidden", timeout_secs=60.0)


def test_samples_and_conditions_are_those_of_the_device(pool: Pool, artifact: str) -> None:
    """Times are those of CUDA's events; clocks are read, and unknown conditions left out."""
    result = run(pool, request_of(artifact, describe(pool, "cuda:sm_90")))

    assert result.error_text == ""
    assert result.run_secs == pytest.approx((5e-4,) * 3)
    assert result.conditions is not None
    assert result.conditions["sm_mhz"] == 1755
    assert result.conditions["throttled"] == []
    assert result.conditions["reasons"] == ["idle"]
    assert "watts" not in result.conditions


@pytest.mark.parametrize(
    ("network_bytes", "weights", "n_launches"),
    [(1 << 20, "shared cache", 4), (1 << 30, "memory", 6)],
)
def test_weights_of_large_networks_come_from_memory(
    pool: Pool, tmp_path: Path, network_bytes: int, weights: str, n_launches: int
) -> None:
    """The launches of a graph take turns on copies, which fill the cache more than twice."""
    calls = tmp_path / "cuda.log"
    target = worker.describe_target("cuda:sm_90").spec
    built = worker.build(BuildRequest(product(512, 2048, 3072), target, "", str(tmp_path / "a")))
    settings = EvaluatorSettings(min_repeat_ms=0, timeout_secs=60.0, network_bytes=network_bytes)

    request = RunRequest(built.artifact, target, (), settings)
    result = run(pool, request, TUNER_TEST_CUDA_LOG=str(calls))

    assert result.error_text == ""
    assert result.run_secs == pytest.approx((5e-4,) * 3)
    assert (result.conditions or {})["weights"] == weights
    assert n_launches in graph_sizes(calls)
    replays = [line.split()[6:] for line in calls.read_text().splitlines() if "replay" in line]
    assert len({tuple(each) for each in replays}) == (1 if weights == "shared cache" else 6)


def test_throttled_samples_are_taken_again_and_marked(
    pool: Pool, artifact: str, tmp_path: Path
) -> None:
    """Samples that stay throttled carry the reason."""
    calls, request = tmp_path / "cuda.log", request_of(artifact, describe(pool, "cuda:sm_90"))

    result = run(pool, request, TUNER_TEST_CUDA_LOG=str(calls), TUNER_TEST_THROTTLED="1")
    assert result.conditions is not None
    assert result.conditions["throttled"] == ["software power cap", "software thermal slowdown"]
    # Graphs of two milliseconds until the clocks have risen, then three samples of each attempt,
    # behind one that does not count.
    n_warming_up = 5 + 1
    assert graph_sizes(calls).count(4) == n_warming_up + 3 * (3 + 1)


def test_broken_context_ends_its_process(pool: Pool, artifact: str) -> None:
    """The error is returned; the next call is lost, and succeeds when it is repeated."""
    target = describe(pool, "cuda:sm_90")

    result = run(pool, request_of(artifact, target), TUNER_TEST_ILLEGAL_ADDRESS="1")

    assert result.error_kind == "run_error"
    assert "CUDA" in result.error_text
    with pytest.raises(WorkerLost, match="status 75") as caught:
        describe(pool, "cuda:sm_90")
    assert not caught.value.crashed
    assert describe(pool, "cuda:sm_90") == target


def test_candidate_for_another_gpu_is_misuse(pool: Pool, artifact: str) -> None:
    """A wrong device is not a failure of the candidate."""
    with pytest.raises(RequestError, match=r"compute capability 9\.0"):
        run(pool, request_of(artifact, worker.describe_target("cuda:sm_80")))


def test_kernel_that_writes_nothing_is_a_wrong_result(
    pool: Pool, artifact: str, tmp_path: Path
) -> None:
    """The reference needs no GPU; this driver leaves the marker in the output."""
    target = describe(pool, "cuda:sm_90")
    path = tmp_path / "reference.npz"
    path.write_bytes(worker.reference(ReferenceRequest(ir(), target.spec, "real", 0)))

    result = run(pool, replace(request_of(artifact, target), references=(str(path),)))

    assert result.error_kind == "wrong_result"
    assert "is nan, expected" in result.error_text
