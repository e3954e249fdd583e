"""Outputs that depend on random numbers are refused before folding makes them constants."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.tuner.networks.models import model, run
from tuner.errors import ModelError
from tuner.networks.onnx import clean


def test_an_output_of_random_numbers_is_refused() -> None:
    """Though the shape of the numbers is a constant."""
    nodes = [
        helper.make_node("RandomNormal", [], ["noise"], shape=[3]),
        helper.make_node("Add", ["data", "noise"], ["y"]),
    ]

    with pytest.raises(ModelError, match=r"'y' depends on random numbers.*for 'noise'") as caught:
        clean(model(nodes, {"data": (3,)}, {"y": (3,)}))

    assert caught.value.code == "random-operator"


def test_random_numbers_of_a_branch_count() -> None:
    """A branch may be the only one that draws."""
    info = [helper.make_tensor_value_info("value", TensorProto.FLOAT, (3,))]
    drawn = helper.make_node("RandomUniform", [], ["value"], shape=[3])
    kept = helper.make_node("Identity", ["data"], ["value"])
    node = helper.make_node(
        "If",
        ["taken"],
        ["y"],
        then_branch=helper.make_graph([drawn], "then", [], info),
        else_branch=helper.make_graph([kept], "else", [], info),
    )

    with pytest.raises(ModelError, match="RandomUniform draws"):
        clean(model([node], {"data": (3,)}, {"y": (3,)}, {"taken": np.array(True)}))


def test_random_numbers_without_use_are_accepted() -> None:
    """Only their shape is read, or nothing."""
    nodes = [
        helper.make_node("RandomNormal", [], ["unread"], shape=[3]),
        helper.make_node("RandomNormalLike", ["data"], ["noise"]),
        helper.make_node("Shape", ["noise"], ["shape"]),
        helper.make_node("Expand", ["data", "shape"], ["y"]),
    ]
    data = np.arange(3, dtype="float32")

    network = clean(model(nodes, {"data": (3,)}, {"y": (3,)}))

    np.testing.assert_array_equal(run(network.model, {"data": data})[0], data)
