"""Libraries linked from objects compute the outputs of the model, whatever its calls."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.cli import ROOT
from tests.tuner.engines.relax.networks import build_proto, lower_proto
from tests.tuner.networks.models import Array, difference, model, run
from tuner.engines.base import TargetInfo
from tuner.engines.relax.graph.passes.output_views import return_views
from tuner.engines.relax.network import copy_inputs

_LOAD = """
import json, sys
sys.modules["torch"] = None
import numpy, tuner
library = tuner.load(sys.argv[1])
outputs = library(data=numpy.arange(16, dtype="float32").reshape(2, 8))
assert not any("tvm_compiler" in line for line in open("/proc/self/maps"))
print(json.dumps([output.tolist() for output in outputs.values()]))
"""


def check(made: onnx.ModelProto, target: TargetInfo, folder: Path, **feeds: Array) -> None:
    """Build a model, and compare all its outputs with ONNX Runtime's."""
    folder.mkdir()
    library = build_proto(made, target, folder)
    expected = run(made.SerializeToString(), feeds)
    for actual, reference in zip(library(feeds).values(), expected, strict=True):
        assert difference(actual, reference) < 1e-5


def draw(*shape: int) -> Array:
    """Return numbers in [0, 1)."""
    return np.random.default_rng(len(shape)).random(shape, dtype=np.float32)


def test_inputs_and_outputs_of_any_kind(target: TargetInfo, tmp_path: Path) -> None:
    """A kernel may write several tensors; scalars stay scalars, and shapes are numbers."""
    nodes = [
        helper.make_node("Split", ["data"], ["a", "b"], axis=1, num_outputs=2),
        helper.make_node("Sigmoid", ["a"], ["c"]),
        helper.make_node("Mul", ["c", "b"], ["d"]),
        helper.make_node("Mul", ["d", "scale"], ["y"]),
        helper.make_node("Shape", ["data"], ["shape"]),
    ]
    made = model(nodes, {"data": (2, 8), "scale": ()}, {"y": (2, 4), "b": (2, 4)}, opset=18)
    kind = helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, [2])
    made.graph.output.append(kind)
    check(made, target, tmp_path / "kinds", data=draw(2, 8), scale=draw())


def test_weights_of_every_size_and_use(target: TargetInfo, tmp_path: Path) -> None:
    """Small and large weights work, and a weight that two layers share."""
    weights = {"small": draw(16), "large": draw(64, 64), "first": draw(16, 64)}
    nodes = [
        helper.make_node("Add", ["data", "small"], ["a"]),
        helper.make_node("MatMul", ["a", "first"], ["b"]),
        helper.make_node("MatMul", ["b", "large"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "large"], ["y"]),
    ]
    made = model(nodes, {"data": (4, 16)}, {"y": (4, 64)}, weights)
    check(made, target, tmp_path / "weights", data=draw(4, 16))


def test_libraries_in_one_process_are_independent(
    target: TargetInfo, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Several libraries in a process do not share symbols."""
    for number in (1, 2):
        nodes = [helper.make_node("Sigmoid", ["data"], ["y"])]
        made = model(nodes, {"data": (number, 8)}, {"y": (number, 8)})
        check(made, target, tmp_path / str(number), data=draw(number, 8))

    assert "SystemLib" not in capfd.readouterr().err


def test_a_library_runs_without_the_compiler(target: TargetInfo, tmp_path: Path) -> None:
    """It needs the runtime of TVM alone, with the part of it that sorts."""
    node = helper.make_node("TopK", ["data", "k"], ["values", "places"])
    made = model(
        [node], {"data": (2, 8)}, {"values": (2, 3), "places": (2, 3)}, {"k": np.array([3])}
    )
    made.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    check(made, target, tmp_path / "top", data=draw(2, 8))
    environ = os.environ | {"TVM_USE_RUNTIME_LIB": "1", "PYTHONPATH": str(ROOT)}

    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(tmp_path / "top" / "library")],
        capture_output=True, text=True, env=environ, check=False, timeout=120,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[[7, 6, 5], [15, 14, 13]], [[7, 6, 5], [7, 6, 5]]]


def test_reshapes_stay_outside_subgraphs(target: TargetInfo, tmp_path: Path) -> None:
    """They are views, also where they make an output."""
    nodes = [
        # Of two dimensions whatever it is given, before version 13: reshaped before and after.
        helper.make_node("Softmax", ["data"], ["y"]),
        helper.make_node("Softmax", ["y"], ["z"]),
    ]
    made = model(nodes, {"data": (2, 8)}, {"y": (2, 8), "z": (2, 8)})
    made.opset_import[0].version = 11
    check(made, target, tmp_path / "reshapes", data=draw(2, 8))


def _reshaped(*kinds: str) -> onnx.ModelProto:
    """Return a model that reshapes the result of operators."""
    names = ["data", *(f"value{n}" for n in range(len(kinds)))]
    nodes = [
        helper.make_node(kind, [x], [y])
        for kind, x, y in zip(kinds, names, names[1:], strict=False)
    ]
    nodes.append(helper.make_node("Reshape", [names[-1], "shape"], ["y"]))
    shape = np.array([4, 4], np.int64)
    return model(nodes, {"data": (2, 8)}, {"y": (4, 4)}, {"shape": shape})


def test_reshaped_output_is_not_copied(target: TargetInfo) -> None:
    """The network returns a view of what its last kernel wrote."""
    module, _ = lower_proto(_reshaped("Softmax"), target.spec)

    returned = return_views(module)["main"].script()

    assert "call_tir(reshape" in module["main"].script()
    assert "R.reshape(" in returned
    assert "call_tir(reshape" not in returned


def test_reshaped_output_belongs_to_its_call(target: TargetInfo, tmp_path: Path) -> None:
    """The next call does not write to the memory of a view that was returned."""
    (program,) = build_proto(_reshaped("Exp", "Softmax"), target, tmp_path).programs
    inputs = [draw(2, 8), draw(2, 8) + 1]

    outputs = [program.run(copy_inputs(program, {"data": each})) for each in inputs]

    for output, each in zip(outputs, inputs, strict=True):
        powers = np.exp(np.exp(each))
        expected = powers / powers.sum(-1, keepdims=True)
        np.testing.assert_allclose(output.numpy(), expected.reshape(4, 4), rtol=1e-5)


def test_reshaped_input_is_copied(target: TargetInfo, tmp_path: Path) -> None:
    """An output that shared the memory of an input would change with it."""
    (program,) = build_proto(_reshaped(), target, tmp_path).programs
    (tensor,) = copy_inputs(program, {"data": draw(2, 8)})

    output = program.run([tensor])
    tensor.copyfrom(np.zeros((2, 8), np.float32))

    np.testing.assert_array_equal(output.numpy(), draw(2, 8).reshape(4, 4))
