"""A library with a tail returns what the whole model returns."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tuner
from tests.tuner.networks.detectors import detector, feeds
from tests.tuner.networks.models import model as small_model
from tests.tuner.networks.models import run
from tuner.errors import RequestError
from tuner.library import manifest
from tuner.library.tails import TailedLibrary, _Tail
from tuner.library.threads import VARIABLE

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a detector."""
    path = tmp_path_factory.mktemp("detector") / "detector.onnx"
    path.write_bytes(detector().SerializeToString())
    return path


@pytest.fixture(scope="module")
def library(model: Path) -> Path:
    """The detector, built without records."""
    folder = model.with_suffix(".lib")
    tuner.build(str(model), folder, data_dir=model.parent / "data")
    return folder


def test_all_outputs_are_those_of_the_model(
    model: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both runtimes compute the tail, for any number of boxes, and outputs keep their order."""
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "onnxruntime", None)
        slow = tuner.load(library)
    fast = tuner.load(library)
    assert isinstance(slow, TailedLibrary)
    assert isinstance(fast, TailedLibrary)
    assert (fast.tail_runtime, slow.tail_runtime) == ("onnxruntime", "onnx")
    with pytest.raises(RequestError, match="run on the CPU after its library"):
        fast.run_on_device(feeds(0.5))
    for network in (fast, slow):
        assert network.outputs == ("kept", "scores", "places")
        for limit in (0.5, 0.52, 2.0):
            outputs = network(feeds(limit))

            assert tuple(outputs) == network.outputs
            expected = run(model.read_bytes(), feeds(limit))
            for actual, one in zip(outputs.values(), expected, strict=True):
                assert actual.shape == one.shape
                np.testing.assert_allclose(actual, one, rtol=1e-4)


def test_the_manifest_describes_the_tail_and_its_file(library: Path, tmp_path: Path) -> None:
    """The outputs are those of a call; an altered file is refused."""
    described = manifest.read(library)
    assert described.outputs == ("kept", "scores", "places")
    assert described.returned == ("scores", "boxes")
    assert described.programs[0].tail == "tail.onnx"
    assert set(described.files) > {"tail.onnx", "lib.so"}
    assert manifest.parse(json.dumps(manifest.as_json(described)).encode(), "it") == described
    copy = Path(shutil.copytree(library, tmp_path / "copy.lib"))
    (copy / "tail.onnx").write_bytes(b"")

    with pytest.raises(RequestError, match=r"tail\.onnx was altered"):
        tuner.load(copy)


def test_a_comparison_takes_all_outputs(model: Path, library: Path) -> None:
    """Outputs without a fixed shape are compared too, and the tail is named."""
    arrays = feeds()
    result = tuner.evaluate(
        library,
        model=str(model),
        against="onnxruntime",
        arrays=arrays,
        n_turns=1,
        data_dir=model.parent / "data",
    )

    assert result.agrees
    assert [output.name for output in result.peer("onnxruntime").outputs] == [
        "kept",
        "scores",
        "places",
    ]
    assert "from NonMaxSuppression on" in result.tail


def test_buckets_take_exact_sizes(tmp_path: Path, model: Path) -> None:
    """Each program has a tail of its own, which padding would reach."""
    nodes = [
        helper.make_node("Relu", ["data"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["places"]),
        helper.make_node("Cast", ["places"], ["y"], to=1),
    ]
    proto = small_model(nodes, {"data": ("n", 3)}, {"y": (2, "k")})
    path = tmp_path / "small.onnx"
    path.write_bytes(proto.SerializeToString())
    folder = tmp_path / "small.lib"
    tuner.build(str(path), folder, buckets={"n": [2, 4]}, data_dir=model.parent / "data")

    network = tuner.load(folder)

    for n in (2, 4):
        data = np.random.default_rng(n).standard_normal((n, 3)).astype("float32")
        (expected,) = run(path.read_bytes(), {"data": data})
        np.testing.assert_array_equal(network(data=data)["y"], expected)
    with pytest.raises(ValueError, match="would choose among the padding"):
        network(data=np.zeros((3, 3), "float32"))


def test_inputs_are_all_that_the_library_takes(library: Path) -> None:
    """The other runtime gets arrays, also of inputs that it reads alone."""

    class Convertible:
        def __init__(self, array: np.ndarray[Any, Any]) -> None:
            self.array = array
            self.shape, self.dtype = array.shape, array.dtype

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[Any, Any]:
            return self.array

    network = tuner.load(library)
    objects: dict[str, Any] = {name: Convertible(array) for name, array in feeds().items()}

    outputs = network(objects)

    for name, expected in network(feeds()).items():
        np.testing.assert_array_equal(outputs[name], expected)


def test_types_that_the_faster_runtime_takes_no_arrays_of(tmp_path: Path) -> None:
    """The evaluator of onnx computes a tail that reads bfloat16."""
    nodes = [
        helper.make_node("Cast", ["data"], ["short"], to=TensorProto.BFLOAT16),
        helper.make_node("Mul", ["short", "short"], ["squares"]),
        helper.make_node("Relu", ["data"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["places"]),
        helper.make_node("Transpose", ["places"], ["indices"]),
        helper.make_node("GatherND", ["squares", "indices"], ["found"]),
        helper.make_node("Cast", ["found"], ["y"], to=TensorProto.FLOAT),
    ]
    proto = small_model(nodes, {"data": (3, 4)}, {"y": ("k",)})
    path = tmp_path / "short.onnx"
    path.write_bytes(proto.SerializeToString())
    tuner.build(str(path), tmp_path / "short.lib", data_dir=tmp_path / "data")

    network = tuner.load(tmp_path / "short.lib")

    assert isinstance(network, TailedLibrary)
    assert network.tail_runtime == "onnx"
    data = np.arange(-5, 7, dtype="float32").reshape(3, 4)
    np.testing.assert_array_equal(network(data=data)["y"], data[data > 0] ** 2)


def test_a_jitted_model_has_its_tail(model: Path) -> None:
    """The library of a jitted function is called like any other."""
    function = tuner.jit(model, data_dir=str(model.parent / "data"))

    outputs = function(**feeds())

    for actual, one in zip(outputs.values(), run(model.read_bytes(), feeds()), strict=True):
        np.testing.assert_allclose(actual, one, rtol=1e-4)


def test_a_tail_that_fails_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The error is raised; the standard error of the caller is the caller's."""
    monkeypatch.setenv(VARIABLE, "1")
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    infos = [
        helper.make_tensor_value_info(name, kind, [2])
        for name, kind in (("x", TensorProto.FLOAT), ("i", TensorProto.INT64))
    ]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([node], "tail", infos, [out])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "t.onnx")
    tail = _Tail(tmp_path / "t.onnx")

    with pytest.raises(RequestError, match="the operators after the library failed"):
        tail.run(["y"], {"x": np.zeros(2, np.float32), "i": np.array([0, 7])})

    assert capfd.readouterr().err == ""
