"""Branches with a constant condition are inlined, others stay."""

import numpy as np
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

from tests.tuner.networks.models import model, run
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean
from tuner.networks.onnx.control_flow.branches import inline_constant_branches


def branch(op: str, inner: bool | None = None, prefix: str = "") -> GraphProto:
    """Return a branch that applies an operator to ``data`` and its own constant.

    Args:
        op: The operator.
        inner: Condition of a branch inside of this one; None without one.
        prefix: Prefix of the names of its values.
    """
    nodes = [helper.make_node(op, ["data", f"{prefix}c"], [f"{prefix}value"])]
    constants = [numpy_helper.from_array(np.array([2.0], "float32"), f"{prefix}c")]
    if inner is not None:
        constants.append(numpy_helper.from_array(np.array(inner), "inner"))
        graphs = {
            "then_branch": branch("Mul", prefix="inner_"),
            "else_branch": branch("Sub", prefix="inner_"),
        }
        nodes.append(helper.make_node("If", ["inner"], ["nested"], **graphs))
        nodes.append(helper.make_node("Add", ["value", "nested"], ["result"]))
    name = nodes[-1].output[0]
    output = helper.make_tensor_value_info(name, TensorProto.FLOAT, (3,))
    return helper.make_graph(nodes, "branch", [], [output], constants)


@pytest.mark.parametrize("taken", [True, False])
def test_the_taken_branch_replaces_the_node(taken: bool) -> None:
    """Names of values in both branches may be equal; branches inside them are inlined too."""
    graphs = {"then_branch": branch("Add", inner=False), "else_branch": branch("Div", inner=True)}
    node = helper.make_node("If", ["taken"], ["y"], **graphs)
    proto = model([node], {"data": (3,)}, {"y": (3,)}, {"taken": np.array(taken)})
    feeds = {"data": np.array([1.0, 2.0, 4.0], "float32")}

    expected = run(proto.SerializeToString(), feeds)
    network = clean(proto)
    assert inline_constant_branches(proto) == 2

    assert {each.op_type for each in proto.graph.node} <= {"Add", "Div", "Mul", "Sub", "Identity"}
    np.testing.assert_array_equal(run(proto.SerializeToString(), feeds)[0], expected[0])
    np.testing.assert_array_equal(run(network.model, feeds)[0], expected[0])


def test_a_condition_that_is_computed_keeps_its_node() -> None:
    """The branch that is taken is unknown before the network runs."""
    nodes = [
        helper.make_node("ReduceMax", ["data"], ["largest"], keepdims=0),
        helper.make_node("Greater", ["largest", "limit"], ["taken"]),
        helper.make_node(
            "If", ["taken"], ["y"], then_branch=branch("Add"), else_branch=branch("Mul")
        ),
    ]
    proto = model(nodes, {"data": (3,)}, {"y": (3,)}, {"limit": np.array(1.0, "float32")})

    assert inline_constant_branches(proto) == 0


def test_a_branch_of_another_shape_is_refused_with_its_input() -> None:
    """The message names the input by which the model chooses, and says what to do."""
    reduced = helper.make_graph(
        [helper.make_node("ReduceMax", ["data"], ["value"])],
        "branch",
        [],
        [helper.make_tensor_value_info("value", TensorProto.FLOAT, ("k",))],
    )
    nodes = [
        helper.make_node("Greater", ["rate", "limit"], ["taken"]),
        helper.make_node("If", ["taken"], ["y"], then_branch=branch("Add"), else_branch=reduced),
    ]
    inputs = {"data": (3,), "rate": (1,)}
    proto = model(nodes, inputs, {"y": ("k",)}, {"limit": np.array([1.0], "float32")})

    with pytest.raises(ModelError, match=r"branch \(If\).*rate=NUMBER") as caught:
        clean(proto)
    assert caught.value.code == "data-dependent-shape"
