"""Branches that the data choose are both computed, and one is selected."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.networks.models import Array, run
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean

_WEIGHTS = {
    "two": np.array([2.0], "float32"),
    "none": np.array(0),
    "limit": np.array(1.0, "float32"),
    "whole": np.array([8, 9, 10]),
}


def _branch(*nodes: onnx.NodeProto, kind: int = TensorProto.FLOAT) -> onnx.GraphProto:
    """Return a branch whose output is that of its last node."""
    output = helper.make_tensor_value_info(nodes[-1].output[0], kind, None)
    return helper.make_graph(nodes, "branch", [], [output])


def _node(op: str, *names: str, **attributes: object) -> onnx.NodeProto:
    """Return a node whose last name is its output."""
    return helper.make_node(op, names[:-1], names[-1:], **attributes)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    kind: int = TensorProto.FLOAT,
    shape: Sequence[int | str] = (3,),
) -> onnx.ModelProto:
    """Return a model with the output ``y``."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in inputs.items()
    ]
    output = helper.make_tensor_value_info("y", kind, shape)
    weights = [numpy_helper.from_array(array, name) for name, array in _WEIGHTS.items()]
    graph = helper.make_graph(nodes, "test", infos, [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _check(proto: onnx.ModelProto, feeds: Sequence[Mapping[str, Array]]) -> set[str]:
    """Check the outputs of a cleaned model for some inputs; return its operators."""
    network = clean(proto)
    assert [note for note in network.notes if note.startswith("computed both branches of")]
    for each in feeds:
        (actual,), (expected,) = (
            run(model, dict(each)) for model in (network.model, proto.SerializeToString())
        )
        assert actual.shape == expected.shape
        np.testing.assert_array_equal(actual, expected)
    return {node.op_type for node in onnx.load_from_string(network.model).graph.node}


_DATA = np.array([0.5, 0.2, 0.1], "float32")
_LARGEST = [
    _node("ReduceMax", "data", "largest", keepdims=0),
    _node("Greater", "largest", "limit", "taken"),
]


def test_the_data_select_an_output() -> None:
    """The output is that of the branch that ONNX Runtime takes, branches inside included."""
    nested = _branch(
        _node("ReduceMin", "data", "least", keepdims=0),
        _node("Greater", "least", "limit", "inner"),
        _node(
            *("If", "inner", "chosen"),
            then_branch=_branch(_node("Exp", "data", "v")),
            else_branch=_branch(_node("Neg", "data", "v")),
        ),
        _node("Add", "chosen", "two", "sum"),
    )
    other = _branch(_node("Mul", "data", "two", "v"))
    nodes = [*_LARGEST, _node("If", "taken", "y", then_branch=nested, else_branch=other)]

    feeds = [{"data": _DATA * factor} for factor in (1, 5, 50)]
    operators = _check(_model(nodes, feeds[0]), feeds)

    assert "If" not in operators


def test_a_condition_of_one_element_selects_a_scalar() -> None:
    """The output keeps its rank."""
    branches = [_branch(_node(op, "data", "v", keepdims=0)) for op in ("ReduceMax", "ReduceMin")]
    nodes = [
        _node("Greater", "rate", "two", "taken"),
        _node("If", "taken", "y", then_branch=branches[0], else_branch=branches[1]),
    ]
    feeds = [{"data": _DATA, "rate": np.array([n], "float32")} for n in (1, 3)]

    _check(_model(nodes, feeds[0], shape=()), feeds)


@pytest.mark.parametrize("opset", [7, 8])
def test_branches_of_an_old_version_are_converted(opset: int) -> None:
    """Versions without Where are raised, operators inside of branches included."""
    scales = [1.0, 2.0]
    branches = [
        _branch(_node("Upsample", "data", "v", mode="nearest", scales=scales)),
        _branch(
            _node("Upsample", "data", "wide", mode="nearest", scales=scales),
            _node("Neg", "wide", "v"),
        ),
    ]
    nodes = [*_LARGEST, _node("If", "taken", "y", then_branch=branches[0], else_branch=branches[1])]
    feeds = [{"data": _DATA.reshape(1, 3) * factor} for factor in (1, 5)]
    proto = _model(nodes, feeds[0], shape=(1, 6))
    proto.opset_import[0].version = opset

    assert "Where" in _check(proto, feeds)


@pytest.mark.parametrize("op", ["Div", "Gather"])
def test_a_branch_that_is_not_taken_does_no_harm(op: str) -> None:
    """It neither divides by zero nor reads beyond the end."""
    operands = ("whole", "n") if op == "Div" else ("whole", "place")
    then = _branch(
        _node("Expand", "n", "shape", "place"),
        _node(op, *operands, "v"),
        kind=TensorProto.INT64,
    )
    other = _branch(_node("Identity", "whole", "v"), kind=TensorProto.INT64)
    nodes = [
        _node("Constant", "shape", value=numpy_helper.from_array(np.array([3]))),
        _node("Equal", "n", "none", "is_none"),
        _node("Greater", "n", "far", "is_far"),
        _node("Or", "is_none", "is_far", "is_wrong"),
        _node("If", "is_wrong", "y", then_branch=other, else_branch=then),
    ]
    nodes.insert(0, _node("Constant", "far", value=numpy_helper.from_array(np.array(2))))
    feeds = [{"n": np.array(n)} for n in (0, 1, 2, 1 << 40)]

    _check(_model(nodes, feeds[0], TensorProto.INT64), feeds)


def test_a_branch_of_unknown_shape_is_refused_though_the_output_has_one() -> None:
    """Nothing can select between outputs of different shapes."""
    nodes = [
        *_LARGEST,
        _node(
            *("If", "taken", "chosen"),
            then_branch=_branch(_node("Exp", "data", "v")),
            else_branch=_branch(_node("ReduceMax", "data", "v")),
        ),
        _node("ReduceSum", "chosen", "y", keepdims=0),
    ]
    with pytest.raises(ModelError, match=r"branch \(If\)") as caught:
        clean(_model(nodes, {"data": _DATA}, shape=()))
    assert caught.value.code == "data-dependent-shape"
