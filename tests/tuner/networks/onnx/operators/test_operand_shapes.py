"""Operands that do not fit together are refused before kernels read beyond them."""

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.tuner.networks.models import Spec, model
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean
from tuner.networks.onnx.inference import infer_shapes
from tuner.networks.onnx.operators.operand_shapes import check_operands

_OPSET = 23
_Shape = tuple[int, ...]
_KINDS = {"float": "float32", "int64": "int64", "uint8": "uint8", "int32": "int32"}

# Operator, attributes, shapes that fit, and shapes that do not at their place.
_NORM = [(1, 4, 2), (4,), (4,)]
_STEPS = [(4, 3, 2), (1, 12, 2), (1, 12, 3), (1, 24), (3,), (1, 3, 3), (1, 3, 3), (1, 9)]
_CASES: list[tuple[str, dict[str, Any], list[_Shape], dict[int, list[_Shape]]]] = [
    (
        "Attention",
        {},
        [(2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 8), (5, 9), (2, 2, 3, 8), (2, 2, 3, 8)],
        {
            0: [(2, 3, 5, 8)],
            1: [(1, 2, 6, 8), (2, 2, 6, 4)],
            2: [(2, 2, 5, 8)],
            3: [(4, 9), (3, 1, 5, 9)],
            4: [(1, 2, 3, 8)],
            5: [(2, 2, 4, 8), (2, 2, 3, 4)],
        },
    ),
    (
        "Attention",
        {"q_num_heads": 4, "kv_num_heads": 2},
        [(2, 5, 32), (2, 6, 16), (2, 6, 16)],
        {1: [(2, 6, 32), (1, 6, 16)], 2: [(2, 6, 15), (2, 5, 16)]},
    ),
    ("Conv", {"group": 2}, [(1, 4, 5), (6, 2, 3), (6,)], {0: [(1, 3, 5)], 2: [(5,), (1,)]}),
    ("Conv", {"kernel_shape": [3]}, [(1, 4, 5), (6, 4, 3)], {1: [(6, 4, 2)]}),
    ("ConvInteger", {}, [(1, 3, 5), (4, 3, 2), (), (4,)], {0: [(1, 2, 5)], 2: [(3,)], 3: [(3,)]}),
    ("ConvTranspose", {"group": 2}, [(1, 4, 5), (4, 2, 3), (4,)], {1: [(2, 2, 3)], 2: [(2,)]}),
    (
        "DeformConv",
        {},
        [(1, 2, 4, 4), (3, 2, 2, 2), (1, 8, 3, 3), (3,), (1, 4, 3, 3)],
        {0: [(1, 3, 4, 4)], 2: [(1, 4, 3, 3)], 3: [(2,)], 4: [(1, 4, 3, 2)]},
    ),
    ("DequantizeLinear", {}, [(2, 3), (3,), (3,)], {1: [(2,), (2, 3)], 2: [(1,), (2,)]}),
    ("DequantizeLinear", {}, [(2, 3), (), (1,)], {2: [(3,)]}),
    ("DequantizeLinear", {}, [(3,), (3,), (3,)], {1: [(2,)]}),
    ("DequantizeLinear", {"axis": 0, "block_size": 2}, [(3, 2), (2, 2)], {1: [(3, 2), (2,)]}),
    ("GRU", {"hidden_size": 3}, [(4, 3, 2), (1, 9, 2), (1, 9, 3), (1, 18)], {3: [(1, 9)]}),
    ("GatherElements", {"axis": 1}, [(2, 3), (1, 7)], {1: [(4, 3)]}),
    ("GatherND", {"batch_dims": 1}, [(2, 3), (2, 1, 1)], {1: [(3, 1, 1)]}),
    ("Gemm", {"transB": 1}, [(2, 3), (4, 3), (4,)], {2: [(3,), (2,)]}),
    ("GroupNormalization", {"num_groups": 2}, _NORM, {1: [(3,)], 2: [(2,)]}),
    ("InstanceNormalization", {}, _NORM, {1: [(2,)], 2: [(5,)]}),
    (
        "LSTM",
        {"hidden_size": 3},
        [*_STEPS],
        {
            1: [(1, 12, 3), (2, 12, 2)],
            2: [(1, 12, 4), (1, 9, 3)],
            3: [(1, 12)],
            4: [(2,), (4,)],
            5: [(1, 2, 3), (3, 1, 3)],
            6: [(1, 3, 2)],
            7: [(1, 12)],
        },
    ),
    (
        "LSTM",
        {"hidden_size": 3, "layout": 1},
        [(3, 4, 2), *_STEPS[1:5], (3, 1, 3), (3, 1, 3)],
        {5: [(1, 3, 3)]},
    ),
    ("LayerNormalization", {}, [(2, 3, 4), (4,), (4,)], {1: [(3,)], 2: [(2,)]}),
    ("MatMulInteger", {}, [(2, 4), (4, 3), (2,), (3,)], {2: [(3,)], 3: [(2,)]}),
    (
        "MaxUnpool",
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        [(1, 1, 2, 2), (1, 1, 2, 2)],
        {1: [(1, 1, 1, 1)]},
    ),
    ("SoftmaxCrossEntropyLoss", {}, [(2, 5, 3), (2, 3), (5,)], {1: [(2, 2)], 2: [(4,), (1,)]}),
    ("DFT", {}, [(2, 8, 1)], {0: [(8,), (2, 8), (2, 8, 3)]}),
    ("STFT", {}, [(2, 8, 1), ()], {0: [(2, 8, 3)]}),
    ("Pad", {}, [(2, 3), (2,), (), (1,)], {3: [(1, 1)]}),
    ("PRelu", {}, [(2, 3, 4), (3, 1)], {1: [(3,), (2, 2, 3, 4)]}),
    (
        "QLinearConv",
        {},
        [(1, 3, 5, 5), (), (), (4, 3, 1, 1), (4,), (4,), (), (), (4,)],
        {4: [(3,)], 5: [(2,)], 6: [(4,)]},
    ),
    (
        "QLinearMatMul",
        {},
        [(2, 4), (), (), (4, 3), (3,), (3,), (), ()],
        {1: [(3,)], 4: [(4,)], 7: [(3,)]},
    ),
    ("ReduceSum", {}, [(2, 3), (1,)], {1: [(), (1, 1)]}),
    ("Reshape", {}, [(2, 3), (2,)], {0: [(2, 3, 2)], 1: [(), (1, 1)]}),
    ("Slice", {}, [(2, 3), (1,), (1,), (1,)], {1: [(1, 1)], 3: [(), (1, 1)]}),
    ("CumSum", {}, [(2, 3), ()], {0: [()], 1: [(2,)]}),
    ("Squeeze", {}, [(1, 3), (1,)], {1: [(), (1, 1)]}),
    ("QuantizeLinear", {"axis": -2}, [(2, 3), (2,), (2,)], {1: [(3,)], 2: [(3,), ()]}),
    ("RMSNormalization", {}, [(2, 3, 4), (4,)], {1: [(3,)]}),
    ("ReverseSequence", {"time_axis": 0, "batch_axis": 1}, [(4, 3), (3,)], {1: [(2,)]}),
    (
        "RotaryEmbedding",
        {},
        [(2, 4, 3, 8), (9, 4), (9, 4), (2, 3)],
        {1: [(9, 3)], 2: [(8, 4)], 3: [(1, 3)]},
    ),
    (
        "RotaryEmbedding",
        {"num_heads": 2},
        [(2, 3, 16), (2, 3, 4), (2, 3, 4)],
        {1: [(1, 3, 4)], 2: [(2, 3, 8)]},
    ),
    ("ScatterElements", {}, [(2, 3), (2, 3), (2, 3)], {1: [(2, 4)], 2: [(1, 3), (2,)]}),
    ("ScatterND", {}, [(4, 3), (2, 1), (2, 3)], {2: [(1, 3), (2,), (2, 2)]}),
]


def single(op: str, attributes: dict[str, Any], shapes: list[_Shape]) -> onnx.ModelProto:
    """Return a model of one operator, whose last operand is a constant and the others inputs."""
    operands = {}
    for formal, shape in zip(onnx.defs.get_schema(op, _OPSET).inputs, shapes, strict=False):
        kind = next(kind for kind in _KINDS if f"tensor({kind})" in formal.types)
        operands[formal.name] = np.zeros(shape, _KINDS[kind])
    node = helper.make_node(op, [*operands], ["out"], name="node", **attributes)
    name, constant = operands.popitem()
    return model([node], operands, {"out": None}, {name: constant}, opset=_OPSET)


@pytest.mark.parametrize(("op", "attributes", "shapes", "misfits"), _CASES)
def test_operands_that_do_not_fit_are_refused(
    op: str,
    attributes: dict[str, Any],
    shapes: list[_Shape],
    misfits: dict[int, list[_Shape]],
) -> None:
    """ONNX Runtime refuses them when it runs; the line has operator, node and operand."""
    check_operands(infer_shapes(single(op, attributes, shapes)))

    for place, wrong in ((place, shape) for place, each in misfits.items() for shape in each):
        others = [*shapes[:place], wrong, *shapes[place + 1 :]]
        formal = onnx.defs.get_schema(op, _OPSET).inputs[place].name
        line = f"{op} 'node': operand {formal} has the shape {wrong}, which must "
        with pytest.raises(ModelError, match=re.escape(line)) as caught:
            clean(single(op, attributes, others))
        assert caught.value.code == "invalid-model"


def test_an_axis_of_indices_may_be_longer_than_that_of_the_data() -> None:
    """It is the axis that indices are of; along others, they may be fewer."""
    node = helper.make_node("GatherElements", ["x", "i"], ["y"], axis=1)

    network = clean(model([node], {"x": (2, 3), "i": np.zeros((1, 7), "int64")}, {"y": (1, 7)}))

    assert network.outputs["y"].shape == (1, 7)


def test_positions_of_an_unknown_number_choose_rows() -> None:
    """Tables have as many rows as there are positions only where none are given."""
    nodes = [
        helper.make_node("Compress", ["given", "chosen"], ["places"], axis=1),
        helper.make_node("RotaryEmbedding", ["x", "c", "s", "places"], ["y"]),
    ]
    inputs: dict[str, Spec] = {"x": (2, 4, 3, 8), "c": (9, 4), "s": (9, 4)}
    inputs |= {"given": np.zeros((2, 5), "int64"), "chosen": np.zeros(5, bool)}

    check_operands(infer_shapes(model(nodes, inputs, {"y": (2, 4, 3, 8)}, opset=23)))


@pytest.mark.parametrize("axis", [1, -2])
def test_a_running_sum_needs_its_axis(axis: int) -> None:
    """A constant one that the data lack is not counted modulo."""
    node = helper.make_node("CumSum", ["x", "axis"], ["y"])

    with pytest.raises(ModelError, match=r"operand x has the shape \(6,\), .* \(any, any\)"):
        clean(model([node], {"x": (6,)}, {"y": (6,)}, {"axis": np.array(axis)}))
