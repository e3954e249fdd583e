"""Models and requests for the engine, which these tests call in their own process."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.tuner.engines.relax import drivers
from tests.tuner.networks import models
from tuner.engines.base import (
    BuildRequest,
    EvaluatorSettings,
    ExtractedTask,
    ModelFile,
    ReferenceRequest,
    TargetInfo,
)
from tuner.workers.pool import Pool, WorkerSettings

with warnings.catch_warnings():
    # TVM warns about its own deprecations when it is imported.
    warnings.simplefilter("ignore")
    from tuner.engines.relax import worker
    from tuner.engines.relax.run import reference
    from tuner.engines.relax.run.artifacts import Kernel, load_kernel
    from tuner.engines.relax.schedules import base

QUICK = EvaluatorSettings(min_repeat_ms=0)
Array = np.ndarray[Any, np.dtype[Any]]
Save = Callable[..., ModelFile]
#: CPUs whose vector registers differ: 16 of 16 bytes, 16 of 32 bytes, 32 of 64 bytes.
CPUS = ("x86-64-v2", "znver3", "skylake-avx512")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder: TVM warns about itself, and torch and Triton as well."""
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            is_noisy = "torch" in item.path.name or "triton" in item.path.parts
            item.add_marker(pytest.mark.tvm)
            item.add_marker(pytest.mark.filterwarnings("ignore" if is_noisy else "ignore:::tvm"))


@pytest.fixture(autouse=True)
def _rules_that_fail(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test during which a schedule by rule raised what TVM does not raise."""
    yield
    logged = caplog.get_records("call")
    assert not [each.exc_text for each in logged if each.name == base.__name__]


@pytest.fixture(scope="session")
def target() -> TargetInfo:
    """Canonical JSON of this CPU."""
    return worker.describe_target("llvm")


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a driver and a runtime of CUDA that run no kernel."""
    return drivers.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def pool(driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A process that sees the GPU of the stub, of the architecture sm_90."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(driver))
        with Pool(WorkerSettings(1, tmp_path_factory.mktemp("pool") / "worker.log")) as opened:
            yield opened


def described(mcpu: str) -> TargetInfo:
    """Describe the target of a CPU with two cores, which need not be this one."""
    return worker.describe_target(f'{{"kind":"llvm","mcpu":"{mcpu}","num-cores":2}}')


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Write a model of given nodes, with one input ``data`` and one output ``y``."""

    def write(
        nodes: list[onnx.NodeProto], shape: tuple[int, ...], weights: dict[str, Array]
    ) -> ModelFile:
        model = models.model(nodes, {"data": shape}, {"y": None}, weights)
        path = tmp_path / "model.onnx"
        path.write_bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())
        return ModelFile(str(path), "onnx", {"data": (shape, "float32")})

    return write


def draw(*shape: int, seed: int = 0) -> Array:
    """Return weights around zero."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def built_candidate(
    task: ExtractedTask, trace: str, target: TargetInfo, folder: Path
) -> tuple[Kernel, list[str]]:
    """Build and load a candidate; return it with the references of both sets of inputs."""
    built = worker.build(BuildRequest(task.ir, target.spec, trace, str(folder / "kernel")))
    assert not built.error_text
    paths = []
    for kind in ("real", "whole"):
        path = folder / f"{kind}.npz"
        path.write_bytes(reference.reference(ReferenceRequest(task.ir, target.spec, kind, 1)))
        paths.append(str(path))
    return load_kernel(built.artifact, target.spec), paths
