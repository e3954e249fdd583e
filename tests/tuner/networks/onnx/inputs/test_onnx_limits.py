"""Limits of inputs that ONNX operators take as indices and divisors, and constants beyond them."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tuner.errors import ModelError
from tuner.library.limits import InputLimit
from tuner.networks.onnx.cleaning import clean

_INT, _FLOAT = TensorProto.INT64, TensorProto.FLOAT
_SHAPES = {
    "i": (_INT, [2, 2]),
    "n": (_INT, [4]),
    "wide": (_INT, [8, 8]),
    "long": (_INT, [1000]),
    "x": (_FLOAT, [4, 8]),
    "s": (_FLOAT, [3, 4, 2]),
    "image": (_FLOAT, [1, 1, 2, 2]),
}
_ZEROS = {
    "table": np.zeros((4, 8), np.float32),
    "u": np.zeros((2, 8), np.float32),
    "boxes": np.zeros((4, 4), np.float32),
    "w": np.zeros((1, 8, 2), np.float32),
    "whole": np.zeros((2, 2), np.int64),
    "shape": np.array([1, 1, 2, 2]),
}


def node(op: str, operands: str, out: str = "y", domain: str = "", **attributes: Any) -> Any:
    """Return a node."""
    names = [name.strip("-") for name in operands.split()]
    return helper.make_node(op, names, [out], domain=domain, **attributes)


def limits_of(
    *nodes: onnx.NodeProto, kind: int = _FLOAT, **constants: Any
) -> tuple[InputLimit, ...]:
    """Return the limits of the inputs of a model with the output ``y``."""
    made = {name for each in nodes for name in each.output}
    read = {name for each in nodes for name in each.input} - made
    weights = {name: array for name, array in _ZEROS.items() if name in read} | constants
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, *_SHAPES[n]) for n in _SHAPES if n in read],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return clean(helper.make_model(graph, opset_imports=opsets, ir_version=9)).limits


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (node("Gather", "table i"), ("i", -4, 3)),
        (node("Gather", "table i", axis=1), ("i", -8, 7)),
        (node("GatherElements", "x i", axis=-1), ("i", -8, 7)),
        (node("ScatterElements", "x i whole_u", axis=1), ("i", -8, 7)),
        (node("MaxUnpool", "image places", kernel_shape=[2, 2], strides=[2, 2]), ("i", 0, 15)),
        (node("ReverseSequence", "x n", time_axis=1, batch_axis=0), ("n", 0, 8)),
        (node("LSTM", "s w w - n", hidden_size=2), ("n", 0, 3)),
        (node("RoiAlign", "image boxes n"), ("n", 0, 0)),
        (
            node("EmbedLayerNormalization", "j - table table - g b", domain="com.microsoft"),
            ("i", 0, 3),
        ),
    ],
    ids=lambda value: getattr(value, "op_type", ""),
)
def test_operands_have_the_limits_of_the_axis(
    each: onnx.NodeProto, expected: tuple[str, int, int]
) -> None:
    """Indices count from both ends where ONNX says so; lengths go from 0 to that of the axis."""
    helpers = [
        helper.make_node("Reshape", ["i", "shape"], ["places"]),
        helper.make_node("Cast", ["i"], ["j"], to=TensorProto.INT32),
    ]
    before = [one for one in helpers if one.output[0] in each.input]
    if each.op_type == "LSTM":
        before = [helper.make_node("Cast", ["n"], ["m"], to=TensorProto.INT32)]
        each.input[4] = "m"
        each.input[0] = "s"
    constants: dict[str, Any] = {}
    if "whole_u" in each.input:
        constants["whole_u"] = np.zeros((2, 2), np.float32)
    if each.op_type == "EmbedLayerNormalization":
        constants |= {name: np.ones(8, np.float32) for name in "gb"}
        each.output.append("mask")

    (limit,) = limits_of(*before, each, **constants)

    assert (limit.input, limit.low, limit.high, limit.part) == (*expected, ())


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_a_divisor_of_whole_numbers_is_not_0(op: str) -> None:
    """The limit of a divisor has no ends."""
    assert limits_of(node(op, "whole i"), kind=_INT) == (InputLimit("i", op),)


def test_rows_of_indices_have_a_limit_for_each_column() -> None:
    """The second column indexes the second axis."""
    expected = [
        InputLimit("i", "GatherND", -size, size - 1, ((0, 2, 1), (column, column + 1, 1)))
        for column, size in enumerate((4, 8))
    ]

    assert limits_of(node("GatherND", "x i")) == (*expected,)


def test_what_only_moves_numbers_is_followed() -> None:
    """A cast, a transpose, a slice and a concatenation with constants keep the limit of a part."""
    nodes = [
        node("Cast", "i", out="a", to=TensorProto.INT32),
        node("Transpose", "a", out="b"),
        node("Slice", "b first last", out="c"),
        node("Concat", "c known", out="d", axis=0),
        node("Gather", "table d"),
    ]
    ends: dict[str, Any] = {"first": np.array([1]), "last": np.array([2])}

    limits = limits_of(*nodes, known=np.array([[3, 0]], np.int32), **ends)

    # Row 1 of the transposed matrix is column 1.
    assert limits == (InputLimit("i", "Gather", -4, 3, ((0, 2, 1), (1, 2, 1))),)


@pytest.mark.parametrize("places", [[0, 2, 5, 6], [7], [1, 3, 5], [0, 1, 4, 5], [2, 3, 4, 7]])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_limit_of_some_elements_is_of_these_alone(axis: int, places: list[int]) -> None:
    """Whatever set they are, it is that of the slices of the limits."""
    nodes = [node("Gather", "wide some", out="a", axis=axis), node("Gather", "table a")]
    array = np.arange(64).reshape(8, 8)

    limits = limits_of(*nodes, some=np.array(places))

    parts = [array[tuple(slice(*each) for each in limit.part)].ravel() for limit in limits]
    assert sorted(np.concatenate(parts)) == sorted(array.take(places, axis).ravel())


def test_elements_without_order_have_no_limit() -> None:
    """The check at the call would take as many steps as there are elements."""
    places = np.random.default_rng(0).permutation(1000)[:500]
    nodes = [node("Gather", "long some", out="a"), node("Gather", "table a")]

    assert limits_of(*nodes, some=places) == ()


@pytest.mark.parametrize(
    ("less", "zero", "size", "order", "low"),
    [
        ("Less", 0, 4, "a b i", -4),
        ("Less", 0, 3, "a b i", None),
        ("Less", 0, -4, "a b i", None),
        ("Less", 1, 4, "a b i", None),
        ("Greater", 0, 4, "a b i", None),
        ("Less", 0, 4, "a i b", None),
    ],
)
def test_a_wrap_in_front_of_a_gather_is_followed(
    less: str, zero: int, size: int, order: str, low: int | None
) -> None:
    """Exporters add the length of the axis to negative indices; anything else is computed."""
    nodes = [
        node(less, "i zero", out="a"),
        node("Add", "size i", out="b"),
        node("Where", order, out="c"),
        node("Gather", "table c"),
    ]

    limits = limits_of(*nodes, zero=np.array(zero), size=np.array(size))

    assert [(limit.low, limit.high) for limit in limits] == ([] if low is None else [(low, 3)])


def test_a_wrap_lets_indices_count_from_the_end() -> None:
    """Those of a MaxUnpool are counted from the start alone."""
    nodes = [
        node("Less", "i zero", out="a"),
        node("Add", "i size", out="b"),
        node("Where", "a b i", out="c"),
        node("Reshape", "c shape", out="places"),
        node("MaxUnpool", "image places", kernel_shape=[2, 2], strides=[2, 2]),
    ]

    (limit,) = limits_of(*nodes, zero=np.array(0), size=np.array(16))

    assert (limit.low, limit.high) == (-16, 15)


@pytest.mark.parametrize("op", ["Add", "Mul", "Max"])
def test_computed_indices_have_no_limit(op: str) -> None:
    """They are bounded where they are used."""
    nodes = [node(op, "i one", out="a"), node("Gather", "table a")]

    assert limits_of(*nodes, one=np.array(2)) == ()


def test_the_tightest_of_several_limits_is_kept() -> None:
    """One input may index two tables."""
    nodes = [
        node("Gather", "table i", out="a"),
        node("Gather", "table i", out="b", axis=1),
        node("ReduceSum", "a", out="c", keepdims=0),
        node("ReduceSum", "b", out="d", keepdims=0),
        node("Add", "c d"),
    ]

    (limit,) = limits_of(*nodes)

    assert (limit.low, limit.high) == (-4, 3)


@pytest.mark.parametrize(
    ("each", "constants", "message"),
    [
        (node("Gather", "x c"), [4], "constant index 4"),
        (node("Gather", "x c"), [-5], "constant index -5"),
        (node("GatherND", "x c"), [[0, 8]], "constant index 8"),
        (node("ScatterND", "x c u"), [[7], [0]], "constant index 7"),
        (node("Div", "n c"), [1, 0, 2, 3], "divides by the constant 0"),
        (node("Mod", "n c"), [0], "divides by the constant 0"),
    ],
)
def test_constants_beyond_are_refused(each: onnx.NodeProto, constants: Any, message: str) -> None:
    """The message names the node."""
    each.name = "the_node"
    kind = _INT if each.op_type in ("Div", "Mod") else _FLOAT

    with pytest.raises(ModelError, match=f"{each.op_type} the_node.*{message}"):
        limits_of(each, kind=kind, c=np.array(constants))
