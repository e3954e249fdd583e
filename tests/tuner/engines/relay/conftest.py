"""A process in the environment of the engine relay, and models for it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.environments import INTERPRETER
from tests.tuner.networks import models
from tuner.engines.base import ExtractedTask, Extraction, ModelFile, TargetInfo
from tuner.settings import Settings
from tuner.workers.confinement import sandbox
from tuner.workers.confinement.sandbox_paths import Access, sandbox_of
from tuner.workers.pool import Pool, WorkerSettings

ENGINE = "tuner.engines.relay.worker"
INSIDE = "tests.tuner.engines.relay.inside"
_SANDBOX = "auto" if sandbox.shortcoming() else "required"

Call = Callable[..., Any]
Save = Callable[..., ModelFile]
Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool of one warm worker, confined as far as the kernel can."""
    folder = tmp_path_factory.mktemp("relay")
    settings = Settings("", folder, ENGINE, 1, worker_sandbox=_SANDBOX)
    access = Access(writes=(tmp_path_factory.getbasetemp(),))
    confined = sandbox_of(settings, access, INTERPRETER)
    log = folder / "worker.log"
    with Pool(WorkerSettings(1, log, interpreter=INTERPRETER, sandbox=confined)) as opened:
        yield opened


@pytest.fixture(scope="session")
def engine(pool: Pool) -> Call:
    """Function that calls the engine."""

    def call(function: str, *args: Any) -> Any:
        return pool.call(ENGINE, function, *args, timeout_secs=300.0)

    return call


@pytest.fixture(scope="session")
def target(engine: Call) -> TargetInfo:
    """Canonical JSON of this CPU."""
    described: TargetInfo = engine("describe_target", "llvm")
    return described


@pytest.fixture(scope="session")
def convolution(
    engine: Call, target: TargetInfo, tmp_path_factory: pytest.TempPathFactory
) -> ExtractedTask:
    """A convolution whose weights Ansor packs."""
    path = tmp_path_factory.mktemp("convolution") / "model.onnx"
    nodes = [
        helper.make_node("Conv", ["data", "w"], ["c"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    model = write(path, nodes, (1, 8, 15, 15), {"w": draw(16, 8, 3, 3)})
    extraction: Extraction = engine("extract", model, target.spec)
    (task,) = extraction.tasks
    return task


@pytest.fixture(scope="session")
def pooling(
    engine: Call, target: TargetInfo, tmp_path_factory: pytest.TempPathFactory
) -> ExtractedTask:
    """A reduction with several stores to one buffer each."""
    path = tmp_path_factory.mktemp("pooling") / "model.onnx"
    pool = helper.make_node("MaxPool", ["data"], ["p"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    nodes = [pool, helper.make_node("Relu", ["p"], ["y"])]
    model = write(path, nodes, (1, 16, 28, 28), {})
    extraction: Extraction = engine("extract", model, target.spec)
    (task,) = extraction.tasks
    return task


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Write a model of given nodes, with one input ``data`` and one output ``y``."""

    def written(
        nodes: list[onnx.NodeProto], shape: tuple[int, ...], weights: dict[str, Array]
    ) -> ModelFile:
        return write(tmp_path / "model.onnx", nodes, shape, weights)

    return written


def write(
    path: Path,
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    weights: dict[str, Array],
) -> ModelFile:
    """Write an ONNX file in the form that the tuner cleans it to."""
    model = models.model(nodes, {"data": shape}, {"y": None}, weights)
    path.write_bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())
    return ModelFile(str(path), "onnx", {"data": (shape, "float32")})


def draw(*shape: int, seed: int = 0) -> Array:
    """Return weights around zero."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")
