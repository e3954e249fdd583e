"""Outputs that depend on random numbers are refused before folding makes them constants."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.tuner.networks.models import model, run
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean


def test_an_output_of_random_numbers_is_refused() -> None:
    """Though the shape of the numbers is a constant."""
    nodes = [
        helper.make_node("RandomNormal", [], ["noise"], shape=[3]),
        helper.make_node("Add", ["data", "noise"], ["y"]),
    ]

    with pytest.raises(ModelError, match=r"'y' depends on random numbers.*for 'noise'") as caught:
        clean(model(nodes, {"data": (3,)}, {"y": (3,)}))

    assert caught.value.code == "random-operator"


def branching() -> onnx.NodeProto:
    """Return a choice of random numbers and the data."""
    info = [helper.make_tensor_value_info("value", TensorProto.FLOAT, (3,))]
    drawn = helper.make_node("RandomUniform", [], ["value"], shape=[3])
    kept = helper.make_node("Identity", ["data"], ["value"])
    return helper.make_node(
        "If",
        ["taken"],
        ["y"],
        then_branch=helper.make_graph([drawn], "then", [], info),
        else_branch=helper.make_graph([kept], "else", [], info),
    )


def test_random_numbers_of_a_branch_count() -> None:
    """A branch may be the only one that draws."""
    with pytest.raises(ModelError, match="RandomUniform draws"):
        clean(model([branching()], {"data": (3,)}, {"y": (3,)}, {"taken": np.array(True)}))
    negated = helper.make_node("Not", ["off"], ["taken"])
    with pytest.raises(ModelError, match="RandomUniform draws"):
        clean(model([negated, branching()], {"data": (3,)}, {"y": (3,)}, {"off": np.array(False)}))
    above = helper.make_node("ReduceMax", ["data"], ["largest"], keepdims=0)
    choice = helper.make_node("Cast", ["largest"], ["taken"], to=TensorProto.BOOL)
    with pytest.raises(ModelError, match="RandomUniform draws"):
        clean(model([above, choice, branching()], {"data": (3,)}, {"y": (3,)}))


@pytest.mark.parametrize("is_computed", [False, True])
def test_random_numbers_of_a_branch_that_is_never_taken(is_computed: bool) -> None:
    """The condition is a constant, or follows from constants."""
    data = np.arange(3, dtype="float32")
    nodes = [helper.make_node("Not", ["on"], ["taken"]), branching()]
    weights = {"on": np.array(True)} if is_computed else {"taken": np.array(False)}

    network = clean(
        model(nodes if is_computed else nodes[1:], {"data": (3,)}, {"y": (3,)}, weights)
    )

    np.testing.assert_array_equal(run(network.model, {"data": data})[0], data)


@pytest.mark.parametrize("is_taken", [True, False])
def test_random_numbers_that_a_branch_reads(is_taken: bool) -> None:
    """They count where the branch is taken, though they are drawn outside of it."""
    drawn = helper.make_node("RandomNormal", [], ["noise"], shape=[3])
    choice = branching()
    (then,) = [each.g for each in choice.attribute if each.name == "then_branch"]
    then.node[0].CopyFrom(helper.make_node("Add", ["data", "noise"], ["value"]))
    negated = helper.make_node("Not", ["off"], ["taken"])
    weights = {"off": np.array(not is_taken)}
    proto = model([drawn, negated, choice], {"data": (3,)}, {"y": (3,)}, weights)

    if is_taken:
        with pytest.raises(ModelError, match="RandomNormal draws for 'noise'"):
            clean(proto)
    else:
        data = np.arange(3, dtype="float32")
        np.testing.assert_array_equal(run(clean(proto).model, {"data": data})[0], data)


@pytest.mark.parametrize("is_training", [True, False])
def test_dropout_draws_in_training(is_training: bool) -> None:
    """Its third operand says so."""
    node = helper.make_node("Dropout", ["data", "ratio", "training"], ["y"])
    weights = {"ratio": np.array(0.5, np.float32), "training": np.array(is_training)}
    proto = model([node], {"data": (3,)}, {"y": (3,)}, weights)

    if is_training:
        with pytest.raises(ModelError, match="which Dropout draws for 'y'"):
            clean(proto)
    else:
        data = np.arange(3, dtype="float32")
        np.testing.assert_array_equal(run(clean(proto).model, {"data": data})[0], data)


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
