"""Lengths that a model computes with floats are folded in one walk, exactly."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.networks.models import Array, model, run
from tests.tuner.networks.padding import padding_layers
from tuner.networks.onnx.folding.lengths import fold_lengths

N_LAYERS = 16


def test_lengths_that_follow_from_each_other_need_one_walk() -> None:
    """Each layer pads to a multiple of its stride, which depends on the layer before."""
    proto = padding_layers(N_LAYERS)

    n_folded = fold_lengths(proto)

    # The shapes themselves remain, whose lengths no operator reads.
    assert n_folded == 7 * N_LAYERS
    left = {node.op_type for node in proto.graph.node}
    assert left == {"Gather", "Pad", "Shape"}


@pytest.mark.parametrize("divisor", [-2, 2, -3])
def test_quotients_of_integers_lose_their_fraction(divisor: int) -> None:
    """A negative quotient is rounded towards zero, as by ONNX Runtime."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["floats"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Div", ["whole", "divisor"], ["quotients"]),
        helper.make_node("Cast", ["quotients"], ["lengths"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "lengths"], ["y"]),
    ]
    proto = model(nodes, {"x": (3, 2)}, {"y": (3, 2)}, {"divisor": np.array([divisor])})
    feeds = {"x": np.zeros((3, 2), "float32")}
    (expected,) = run(proto.SerializeToString(), feeds)

    assert fold_lengths(proto) == 4

    (actual,) = run(proto.SerializeToString(), feeds)
    np.testing.assert_array_equal(actual, expected)


def test_lengths_that_runtimes_may_round_differently_stay() -> None:
    """A power of a float is not the same to the last bit everywhere."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Pow", ["floats", "exponent"], ["power"]),
        helper.make_node("Mul", ["x", "power"], ["y"]),
    ]
    proto = model(nodes, {"x": (3,)}, {"y": (3,)}, {"exponent": np.array([0.3], "float32")})

    assert fold_lengths(proto) == 1

    assert [node.op_type for node in proto.graph.node] == ["Shape", "Pow", "Mul"]


def test_outputs_and_values_that_depend_on_data_stay() -> None:
    """An output keeps its operator, and so does a length among operands that are data."""
    nodes = [
        helper.make_node("Size", ["x"], ["size"]),
        helper.make_node("Cast", ["size"], ["count"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "count"], ["y"]),
    ]
    proto = model(nodes, {"x": (3, 2)}, {"y": (3, 2), "count": ()})

    assert fold_lengths(proto) == 0
    proto.graph.output.pop()
    assert fold_lengths(proto) == 1

    assert constants(proto) == {"count": np.array(6, "float32")}


def constants(proto: onnx.ModelProto) -> dict[str, Array]:
    """Return the initialisers of a model by name."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
