"""Constant factors of products end in their weights and biases."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.tuner.engines.relax.conftest import Save, draw
from tests.tuner.engines.relax.test_lowering import checked_names, names_of, outputs_of
from tuner.engines.base import TargetInfo

_FACTORS = {
    "one number": np.float32(0.35),
    "a number for each column": draw(24, seed=7),
    "a row": draw(1, 24, seed=8),
    "a row with an axis": draw(1, 1, 24, seed=8),
    "one number with axes": draw(1, 1, 1, seed=8),
    "a column": draw(5, 1, seed=9),
    "infinity": np.float32(np.inf),
}


def _product(scale: str, *, bias: bool) -> list[onnx.NodeProto]:
    """Return a product, perhaps with a bias, and its factor."""
    nodes = [helper.make_node("MatMul", ["data", "w"], ["p"])]
    if bias:
        nodes.append(helper.make_node("Add", ["b", "p"], ["a"]))
    return [*nodes, helper.make_node(scale, [nodes[-1].output[0], "f"], ["y"])]


@pytest.mark.parametrize(("scale", "bias"), [("Mul", True), ("Div", False)])
@pytest.mark.parametrize("factor", [name for name in _FACTORS if name != "infinity"])
def test_a_factor_of_the_columns_is_folded(
    save: Save, target: TargetInfo, factor: str, *, scale: str, bias: bool
) -> None:
    """One number for all, or one for each column, is part of weights and bias."""
    weights = {"w": draw(16, 24), "f": _FACTORS[factor], "b": draw(24, seed=2)}
    used = weights if bias else {name: weights[name] for name in "wf"}
    model = save(_product(scale, bias=bias), (5, 16), used)

    names = " ".join(checked_names(model, target))
    is_folded = "multiply" not in names and "divide" not in names
    assert is_folded == (factor in ("one number", "a number for each column", "a row"))


def test_a_factor_that_leaves_the_range_stays(save: Save, target: TargetInfo) -> None:
    """Infinity times a product is a result of the network."""
    weights = {"w": draw(16, 24), "f": _FACTORS["infinity"]}
    model = save(_product("Mul", bias=False), (5, 16), weights)

    actual, expected = outputs_of(model, target)

    assert "multiply" in " ".join(names_of(model, target))
    np.testing.assert_array_equal(actual, expected)


def test_a_product_that_is_used_twice_stays(save: Save, target: TargetInfo) -> None:
    """It would be computed twice."""
    nodes = [
        *_product("Mul", bias=True)[:-1],
        helper.make_node("Mul", ["a", "f"], ["s"]),
        helper.make_node("Add", ["a", "s"], ["y"]),
    ]
    weights = {"w": draw(16, 24), "f": np.float32(3), "b": draw(24, seed=2)}

    names = checked_names(save(nodes, (5, 16), weights), target)

    assert sum("matmul" in name for name in names) == 1
