"""Model folders of Triton Inference Server, whose module for Python models is played here."""

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from deploy.python import tuner_runtime
from deploy.python.tuner_runtime import core
from deploy.triton import write_model
from tests.deploy.c_library import Array
from tests.deploy.small_network import inputs_of, needs_cmake
from tests.tuner.networks.models import difference, run
from tuner.errors import RequestError

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm"), needs_cmake]


@dataclass
class Tensor:
    """A tensor of Triton."""

    of: str
    array: Array

    def name(self) -> str:
        """Return the name."""
        return self.of

    def as_numpy(self) -> Array:
        """Return the content."""
        return self.array


@dataclass
class Response:
    """A response of Triton, or the message of an error."""

    outputs: list[Tensor] | None = None
    error: str = ""


@dataclass
class Request:
    """A request of Triton."""

    arrays: dict[str, Array]
    names: list[str]

    def inputs(self) -> list[Tensor]:
        """Return the inputs."""
        return [Tensor(*each) for each in self.arrays.items()]

    def requested_output_names(self) -> list[str]:
        """Return the names of the outputs."""
        return self.names


def test_a_model_answers_requests(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request has a response, and one that cannot be run says why."""
    folder = tmp_path / "small"
    write_model.main(built / "network.lib", folder)
    utils: Any = SimpleNamespace(InferenceResponse=Response, Tensor=Tensor, TritonError=str)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    monkeypatch.setitem(sys.modules, "tuner_runtime", tuner_runtime)
    monkeypatch.setattr(core, "_FILE", built / "libtuner.so")
    spec = importlib.util.spec_from_file_location("model", folder / "1" / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    model.initialize({"model_repository": str(folder), "model_version": "1"})

    given = inputs_of(1) | {"scale": np.array([3], np.float32)}
    good, bad = model.execute([Request(given, ["rows", "y"]), Request({"a": np.zeros(3)}, ["y"])])

    y, rows = run((built / "network.onnx").read_bytes(), inputs_of(1))
    assert [tensor.of for tensor in good.outputs] == ["rows", "y"]
    for tensor, reference in zip(good.outputs, (rows, y), strict=True):
        assert difference(tensor.array, reference) < 1e-6
    assert "is missing; inputs are a, b" in bad.error


def test_the_configuration_has_the_tensors_of_the_library(built: Path, tmp_path: Path) -> None:
    """A scalar has one dimension for Triton."""
    write_model.main(built / "network.lib", tmp_path / "small")

    lines = (tmp_path / "small" / "config.pbtxt").read_text().splitlines()
    assert lines[:3] == ['name: "small"', 'backend: "python"', "max_batch_size: 0"]
    assert 'input [ { name: "a" data_type: TYPE_FP32 dims: [ 2, 8 ] } ]' in lines
    assert 'input [ { name: "index" data_type: TYPE_INT64 dims: [ 2 ] } ]' in lines
    assert 'input [ { name: "scale" data_type: TYPE_FP32 dims: [ 1 ] } ]' in lines
    assert 'output [ { name: "rows" data_type: TYPE_FP32 dims: [ 2, 3 ] } ]' in lines
    assert lines[-1] == "instance_group [ { count: 1 kind: KIND_CPU } ]"
    with pytest.raises(FileExistsError):
        write_model.main(built / "network.lib", tmp_path / "small")


def test_dynamic_sizes_are_open(bucketed: Path, tailed: Path, tmp_path: Path) -> None:
    """They are those of buckets, and those that the data decide."""
    write_model.main(bucketed, tmp_path / "rows")
    write_model.main(tailed, tmp_path / "tail")

    rows, tail = ((tmp_path / name / "config.pbtxt").read_text() for name in ("rows", "tail"))
    assert 'input [ { name: "table" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]' in rows
    assert 'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]' in rows
    assert 'output [ { name: "z" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]' in tail


def test_a_type_that_triton_lacks_is_refused(tailed: Path, tmp_path: Path) -> None:
    """Nothing is written."""
    library = tmp_path / "lib"
    library.mkdir()
    text = (tailed / "manifest.json").read_text()
    (library / "manifest.json").write_text(text.replace('"float32"', '"bfloat16"'))

    with pytest.raises(RequestError, match="Triton takes no tensors of bfloat16, as 'a' is"):
        write_model.main(library, tmp_path / "model")

    assert not (tmp_path / "model").exists()
