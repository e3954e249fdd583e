"""Loops with a constant number of turns are unrolled, others are refused."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.networks.models import Array, model, run
from tuner.errors import ModelError
from tuner.networks.onnx import clean


def body(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, Any]],
    outputs: dict[str, tuple[int, Any]],
    weights: dict[str, Array] | None = None,
) -> onnx.GraphProto:
    """Return the graph of one turn; values are given by type and shape."""
    infos = [
        [helper.make_tensor_value_info(name, *each) for name, each in values.items()]
        for values in (inputs, outputs)
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    return helper.make_graph(nodes, "body", *infos, tensors)


_NUMBER: tuple[int, Any] = (TensorProto.INT64, [])
_FLAG: tuple[int, Any] = (TensorProto.BOOL, [])
_ROW: tuple[int, Any] = (TensorProto.FLOAT, [3])
#: Turn i adds i to the state and stacks its square; ``outer`` is of the graph around the loop.
_TURN = [
    helper.make_node("Cast", ["i"], ["number"], to=TensorProto.FLOAT),
    helper.make_node("Mul", ["number", "outer"], ["step"]),
    helper.make_node("Add", ["state", "step"], ["next"]),
    helper.make_node("Mul", ["next", "next"], ["square"]),
]


def loop(condition: list[onnx.NodeProto], trips: str, start: str) -> onnx.ModelProto:
    """Return a model of a loop that ends after ``trips`` or by its condition."""
    weights = {"limit": np.array(4), "one": np.array(1)}
    turn = body(
        [*_TURN, *condition],
        {"i": _NUMBER, "go": _FLAG, "state": _ROW, "count": _NUMBER},
        {"goes": _FLAG, "next": _ROW, "counted": _NUMBER, "square": _ROW},
        weights,
    )
    nodes = [
        helper.make_node("Abs", ["data"], ["outer"]),
        helper.make_node(
            "Loop", [trips, start, "data", "zero"], ["y", "last", "squares"], body=turn
        ),
    ]
    outputs: dict[str, tuple[int | str, ...]] = {"y": (3,), "squares": ("n", 3)}
    constants = {"trips": np.array(7), "start": np.array(True), "zero": np.array(0)}
    return model(nodes, {"data": (3,)}, outputs, constants)


_GOES_ON = [
    helper.make_node("Identity", ["go"], ["goes"]),
    helper.make_node("Identity", ["count"], ["counted"]),
]
_COUNTS = [
    helper.make_node("Add", ["count", "one"], ["counted"]),
    helper.make_node("Less", ["counted", "limit"], ["goes"]),
]


def check(proto: onnx.ModelProto, feeds: dict[str, Array]) -> set[str]:
    """Check that cleaning keeps the outputs; return the operators that are left."""
    network = clean(proto)
    before, after = run(proto.SerializeToString(), feeds), run(network.model, feeds)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6)
    return {node.op_type for node in onnx.load_from_string(network.model).graph.node}


@pytest.mark.parametrize(
    ("condition", "trips", "start"),
    [(_GOES_ON, "trips", ""), (_COUNTS, "", "start"), (_COUNTS, "trips", "start")],
)
def test_a_loop_is_unrolled(condition: list[onnx.NodeProto], trips: str, start: str) -> None:
    """By its number of turns, by a condition that counts, or by both."""
    proto = loop(condition, trips, start)

    left = check(proto, {"data": np.array([1.0, -2.0, 0.5], "float32")})

    assert "Loop" not in left


def test_a_loop_that_the_data_ends_is_refused() -> None:
    """The message says what to export instead."""
    condition = [
        helper.make_node("ReduceMax", ["next"], ["largest"], keepdims=0),
        helper.make_node("Cast", ["largest"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Less", ["whole", "limit"], ["goes"]),
        helper.make_node("Identity", ["count"], ["counted"]),
    ]
    with pytest.raises(ModelError, match="depends on the data") as caught:
        clean(loop(condition, "trips", ""))
    assert caught.value.code == "loop"


def test_a_loop_of_too_many_operators_is_refused() -> None:
    """The message has the turns and the operators."""
    proto = loop(_GOES_ON, "trips", "")
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(9000), "trips"))

    with pytest.raises(ModelError, match="9000 turns would become 54000 operators") as caught:
        clean(proto)
    assert caught.value.code == "loop"


@pytest.mark.parametrize("backwards", [0, 1])
def test_a_scan_is_unrolled(backwards: int) -> None:
    """Along any axis and in both directions; its stacks too."""
    turn = body(
        [
            helper.make_node("Mul", ["state", "decay"], ["kept"]),
            helper.make_node("Add", ["kept", "row"], ["next"]),
            helper.make_node("Relu", ["next"], ["positive"]),
        ],
        {"state": _ROW, "row": _ROW},
        {"next": _ROW, "positive": _ROW},
        {"decay": np.array([0.5], "float32")},
    )
    scan = helper.make_node(
        "Scan",
        ["zeros", "data"],
        ["y", "rows"],
        body=turn,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[backwards],
        scan_output_axes=[1],
        scan_output_directions=[backwards],
    )
    outputs: dict[str, tuple[int | str, ...]] = {"y": (3,), "rows": (3, 5)}
    proto = model([scan], {"data": (3, 5)}, outputs, {"zeros": np.zeros(3, "float32")})
    data = np.random.default_rng(0).standard_normal((3, 5), dtype=np.float32)

    assert "Scan" not in check(proto, {"data": data})
