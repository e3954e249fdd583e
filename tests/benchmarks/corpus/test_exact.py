"""The answer in float64 tells a near-tie of float32 from an error."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.corpus.exact import agrees_with_float64, compare_unoptimised

# One is smaller by less than the distance of float32 numbers near 1.
_WEIGHTS = np.array([[1.0, 1.0], [0.0, 2.0**-25]], np.float32)
_INPUTS = {"x": np.array([[1.0, 1.0]], np.float32)}


def _largest() -> onnx.ModelProto:
    """Return a network that finds the larger of two numbers, which float32 rounds to one."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("TopK", ["y", "k"], ["values", "places"], axis=-1),
        helper.make_node("GatherElements", ["table", "places"], ["found"], axis=-1),
    ]
    weights = {
        "w": _WEIGHTS,
        "k": np.array([1]),
        "table": np.arange(2, dtype=np.float32).reshape(1, 2),
    }
    graph = helper.make_graph(
        nodes,
        "largest",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2))],
        [helper.make_tensor_value_info("found", TensorProto.FLOAT, (1, 1))],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_the_answer_in_float64_decides_a_tie_of_float32() -> None:
    """In float32 both numbers are 1, and the first is taken."""
    first, second = (np.array([[place]], np.float32) for place in (0.0, 1.0))

    assert agrees_with_float64(_largest(), _INPUTS, [second], [first])
    assert not agrees_with_float64(_largest(), _INPUTS, [first], [second])


def test_an_output_beyond_the_tolerance_may_be_as_far_as_that_of_the_peer() -> None:
    """A network that multiplies errors is exact in neither runtime."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "twice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 2))],
    )
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    exact, near, far, broken = (
        np.array([[2.0, 2.0 + error]], np.float32) for error in (0.0, 0.1, 0.2, np.nan)
    )

    assert agrees_with_float64(network, _INPUTS, [near], [far])
    assert not agrees_with_float64(network, _INPUTS, [far], [near])
    assert not agrees_with_float64(network, _INPUTS, [near], [exact])
    assert not agrees_with_float64(network, _INPUTS, [broken], [far])
    assert not agrees_with_float64(network, _INPUTS, [far], [broken])


def test_runs_of_a_network_without_optimisations_are_compared(tmp_path: Path) -> None:
    """Nothing of this network is optimised."""
    onnx.save(_largest(), tmp_path / "largest.onnx")

    (check,) = compare_unoptimised(str(tmp_path / "largest.onnx"), _INPUTS, "float32")

    assert check.agrees
    assert check.name == "found"
