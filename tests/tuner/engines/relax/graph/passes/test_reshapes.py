"""Reshapes between operators do not end kernels."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.tuner.engines.relax.conftest import Array, Save, draw
from tests.tuner.engines.relax.test_lowering import checked_names
from tuner.engines.base import ModelFile, TargetInfo
from tuner.engines.relax.graph.passes.reshapes import _reshape_broadcast


def _dense(save: Save, tail: list[onnx.NodeProto], **more: Array) -> ModelFile:
    """Save a dense layer between reshapes, from ``data`` (2, 5, 16) to ``d`` (2, 5, 16)."""
    nodes = [
        helper.make_node("Reshape", ["data", "flat"], ["x"]),
        helper.make_node("Gemm", ["x", "w", "b"], ["p"]),
        helper.make_node("Reshape", ["p", "whole"], ["d"]),
        *tail,
    ]
    weights = {
        "flat": np.array([10, 16]),
        "whole": np.array([2, 5, 16]),
        "w": draw(16, 16),
        "b": draw(16, seed=1),
        **more,
    }
    return save(nodes, (2, 5, 16), weights)


@pytest.mark.parametrize(
    ("tail", "more"),
    [
        ([("Relu", ["d"], "y")], {}),
        ([("Add", ["data", "d"], "a"), ("Tanh", ["a"], "y")], {}),
        ([("Sigmoid", ["d"], "s"), ("Mul", ["d", "s"], "y")], {}),
        ([("Mul", ["d", "scale"], "y")], {"scale": draw(16, seed=3)}),
        ([("Add", ["d", "position"], "y")], {"position": draw(2, 5, 16, seed=3)}),
        ([("Add", ["d", "image"], "y")], {"image": draw(2, 5, 1, seed=3)}),
        ([("Expand", ["d", "whole"], "e"), ("Relu", ["e"], "y")], {}),
    ],
    ids=["relu", "residual", "silu", "scale", "position", "image", "expand"],
)
def test_a_tail_is_fused_into_the_dense_layer(
    save: Save,
    target: TargetInfo,
    tail: list[tuple[str, list[str], str]],
    more: dict[str, Array],
) -> None:
    """The product, its bias and what follows behind a reshape are one kernel."""
    nodes = [helper.make_node(op, inputs, [output]) for op, inputs, output in tail]
    model = _dense(save, nodes, **more)

    assert len(checked_names(model, target)) == 1


def test_a_residual_of_a_product_is_added_by_the_dense_layer(
    save: Save, target: TargetInfo
) -> None:
    """The dense layer follows a product behind a constant factor too, which the reshape moves."""
    tail = [
        helper.make_node("Mul", ["scale", "d"], ["m"]),
        helper.make_node("MatMul", ["data", "each"], ["other"]),
        helper.make_node("Add", ["other", "m"], ["y"]),
    ]
    model = _dense(save, tail, scale=draw(2, 5, 1, seed=3), each=draw(2, 16, 16, seed=4))

    names = sorted(name.partition("[")[0] for name in checked_names(model, target))
    assert names == ["matmul", "matmul_add_multiply_add"]


@pytest.mark.parametrize("place", [1, -1, [2]])
def test_one_place_of_an_axis_is_a_slice(
    save: Save, target: TargetInfo, place: int | list[int]
) -> None:
    """A slice is fused with what follows, as the heads of a packed product are."""
    nodes = [
        helper.make_node("Gather", ["data", "place"], ["g"], axis=1),
        helper.make_node("Relu", ["g"], ["y"]),
    ]
    model = save(nodes, (2, 3, 4), {"place": np.array(place)})

    (name,) = checked_names(model, target)
    assert name.startswith("strided_slice_relu")


def test_an_operand_that_would_be_repeated_keeps_the_reshape(
    save: Save, target: TargetInfo
) -> None:
    """A value per position of the second axis does not broadcast to the flat one."""
    nodes = [helper.make_node("Mul", ["d", "row"], ["y"])]

    assert checked_names(_dense(save, nodes, row=draw(5, 1, seed=3)), target)


def test_products_of_different_rows_of_the_same_data_stay_apart(
    save: Save, target: TargetInfo
) -> None:
    """A product of each head beside one of all heads."""
    nodes = [
        helper.make_node("Reshape", ["data", "heads"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["p"]),
        helper.make_node("MatMul", ["data", "v"], ["q"]),
        helper.make_node("ReduceSum", ["p", "inner"], ["s"], keepdims=0),
        helper.make_node("Add", ["q", "s"], ["y"]),
    ]
    weights = {
        "heads": np.array([2, 6, 4, 8]),
        "inner": np.array([3]),
        "w": draw(8, 8),
        "v": draw(32, 4, seed=1),
    }

    assert checked_names(save(nodes, (2, 6, 32), weights), target)


@pytest.mark.parametrize(
    ("shape", "old", "new", "expected"),
    [
        ((16,), (2, 5, 16), (10, 16), (1, 16)),
        ((2, 5, 1), (2, 5, 16), (10, 16), (10, 1)),
        ((5, 1), (2, 5, 16), (10, 16), None),
        ((1, 5, 16), (1, 5, 16), (5, 16), (5, 16)),
        ((4, 1), (6, 4, 1), (2, 3, 4), (1, 1, 4)),
        ((2, 1, 1), (2, 3, 4), (2, 12), (2, 1)),
        ((), (2, 3), (6,), (1,)),
    ],
)
def test_operands_follow_a_reshape(
    shape: tuple[int, ...],
    old: tuple[int, ...],
    new: tuple[int, ...],
    expected: tuple[int, ...] | None,
) -> None:
    """The new shape broadcasts like the old one, or there is none."""
    viewed = _reshape_broadcast(shape, old, new)

    assert viewed == expected
    if viewed is not None:
        values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        before = np.broadcast_to(values, old).reshape(new)
        np.testing.assert_array_equal(np.broadcast_to(values.reshape(viewed), new), before)
