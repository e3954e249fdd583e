"""Operators inside branches and loops are replaced as those of the main graph are."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.networks import models
from tests.tuner.networks.models import Array, run
from tuner.networks.onnx.cleaning import clean

_RNG = np.random.default_rng(0)
_SHAPE = (1, 3, 16)
# Operator, operands, constants and attributes.
_Case = tuple[str, list[str], Mapping[str, Any], Mapping[str, Any]]


def codes(*shape: int) -> Array:
    """Return random bytes of a few sizes."""
    return _RNG.integers(0, 9, shape).astype("uint8")


def draw(*shape: int) -> Array:
    """Return random numbers."""
    return _RNG.standard_normal(shape).astype("float32")


_TABLES = {"cos": draw(1, 3, 4), "sin": draw(1, 3, 4)}
_WEIGHT = {"w": codes(16, 16), "step": np.float32(0.1), "zero": np.uint8(3)}
_SCALED = ["codes", "step", "zero"]
# The operand ``x`` is the data, ``codes`` the data as bytes.
_CASES: list[_Case] = [
    ("Attention", ["x", "x", "x"], {}, {"q_num_heads": 2, "kv_num_heads": 2}),
    ("Celu", ["x"], {}, {}),
    ("ConvInteger", ["codes", "w"], {"w": codes(3, 3, 1)}, {}),
    ("QLinearMatMul", [*_SCALED, "w", *_SCALED[1:], *_SCALED[1:]], _WEIGHT, {}),
    ("RotaryEmbedding", ["x", *_TABLES], _TABLES, {"num_heads": 2}),
    ("Swish", ["x"], {}, {}),
    (
        "com.microsoft:DynamicQuantizeLSTM",
        ["x", "w", "r", "", "", "", "", "", "s", "z", "s", "z"],
        {"w": codes(1, 16, 16), "r": codes(1, 4, 16), "s": draw(1), "z": codes(1)},
        {"hidden_size": 4},
    ),
    (
        "com.microsoft:MatMulNBits",
        ["x", "w", "s"],
        {"w": codes(16, 1, 8), "s": draw(16, 1)},
        {"K": 16, "N": 16, "bits": 4, "block_size": 16},
    ),
    (
        "com.microsoft:QAttention",
        ["codes", "w", "b", "step", "step", "", "zero", "zero"],
        {**_WEIGHT, "w": codes(16, 48), "b": draw(48)},
        {"num_heads": 2},
    ),
    ("com.microsoft:QLinearAdd", [*_SCALED, *_SCALED, *_SCALED[1:]], _WEIGHT, {}),
]


def _graph(case: _Case, *, is_loop: bool) -> onnx.GraphProto:
    """Return a graph that scales its data by the mean of what an operator makes of it."""
    op, slots, weights, attributes = case
    domain, _, name = op.rpartition(":")
    nodes = [
        helper.make_node("Cast", ["data"], ["codes"], to=TensorProto.UINT8),
        helper.make_node("Identity", ["data"], ["x"]),
        helper.make_node(name, slots, ["made"], domain=domain, **attributes),
        helper.make_node("Cast", ["made"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("ReduceL2", ["wide"], ["norm"], keepdims=0),
        helper.make_node("Sigmoid", ["norm"], ["factor"]),
        helper.make_node("Mul", ["data", "factor"], ["value"]),
    ]
    inputs, outputs = [], [helper.make_tensor_value_info("value", TensorProto.FLOAT, _SHAPE)]
    if is_loop:
        nodes.append(helper.make_node("Identity", ["goes_on"], ["stays"]))
        inputs = [
            helper.make_tensor_value_info("turn", TensorProto.INT64, ()),
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("data", TensorProto.FLOAT, _SHAPE),
        ]
        outputs.insert(0, helper.make_tensor_value_info("stays", TensorProto.BOOL, ()))
    constants = [numpy_helper.from_array(np.asarray(v), key) for key, v in weights.items()]
    return helper.make_graph(nodes, "body", inputs, outputs, constants)


def _model(node: onnx.NodeProto, data: str) -> onnx.ModelProto:
    return models.model(
        [node],
        {data: _SHAPE},
        {"y": _SHAPE},
        {"taken": np.array(True), "trips": np.array(2)},
        opset={"": 24, "com.microsoft": 1},
    )


def _check(proto: onnx.ModelProto, data: str, op: str) -> None:
    feeds = {data: np.abs(draw(*_SHAPE)) * 8}

    network = clean(proto)

    used = {node.op_type for node in onnx.load_from_string(network.model).graph.node}
    assert not used & {op.rpartition(":")[2], "If", "Loop"}
    expected = run(proto.SerializeToString(), feeds)[0]
    np.testing.assert_allclose(run(network.model, feeds)[0], expected, rtol=1e-3)


@pytest.mark.parametrize("case", _CASES, ids=[case[0] for case in _CASES])
def test_operators_of_a_branch_are_replaced(case: _Case) -> None:
    """The branch is inlined first."""
    output = helper.make_tensor_value_info("other", TensorProto.FLOAT, _SHAPE)
    other = helper.make_graph([helper.make_node("Neg", ["data"], ["other"])], "n", [], [output])
    branches = {"then_branch": _graph(case, is_loop=False), "else_branch": other}
    _check(_model(helper.make_node("If", ["taken"], ["y"], **branches), "data"), "data", case[0])


# An unrolled loop is the main graph: operators of ONNX, with tables, and of ONNX Runtime.
@pytest.mark.parametrize("case", _CASES[::4], ids=[case[0] for case in _CASES[::4]])
def test_operators_of_a_loop_are_replaced(case: _Case) -> None:
    """The loop is unrolled first."""
    body = _graph(case, is_loop=True)
    node = helper.make_node("Loop", ["trips", "taken", "first"], ["y"], body=body)
    _check(_model(node, "first"), "first", case[0])
