"""Products of the same rows are one product where their results are only moved."""

import re
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import relax

from tests.tuner.engines.relax.conftest import Array, Save, draw
from tests.tuner.engines.relax.networks import relax_module, run_network
from tests.tuner.engines.relax.test_lowering import checked_names
from tests.tuner.networks.models import difference
from tuner.engines.base import TargetInfo
from tuner.engines.relax.graph.passes.products.parallel_products import ProductMerger


def _head(name: str, *, bias: bool) -> list[onnx.NodeProto]:
    """Return a product, its bias, and the split into two heads."""
    product = [helper.make_node("MatMul", ["data", f"w{name}"], [f"p{name}"])]
    if bias:
        product.append(helper.make_node("Add", [f"b{name}", f"p{name}"], [f"a{name}"]))
    return [
        *product,
        helper.make_node("Reshape", [product[-1].output[0], "heads"], [f"h{name}"]),
        helper.make_node(
            "Transpose", [f"h{name}"], [name], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        ),
    ]


@pytest.mark.parametrize("biases", ["qkv", "qv", ""])
def test_query_key_and_value_are_one_product(save: Save, target: TargetInfo, biases: str) -> None:
    """Widths and biases may differ; the slices are those of each matrix."""
    nodes = [node for name in "qkv" for node in _head(name, bias=name in biases)]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("MatMul", ["s", "v"], ["y"]),
    ]
    weights = {f"w{name}": draw(16, 24, seed=i) for i, name in enumerate("qkv")}
    weights |= {f"b{name}": draw(24, seed=i + 3) for i, name in enumerate(biases)}
    weights["heads"] = np.array([2, 5, 2, 12])

    names = checked_names(save(nodes, (2, 5, 16), weights), target)

    products = [name for name in names if "matmul" in name]
    assert len(products) == 3  # theirs, and the two of attention
    assert products[0].endswith("[10x72]")


def _parts(tails: list[dict[str, Array]]) -> tvm.IRModule:
    """Return products of the rows of one input, each with operators on its columns."""

    def make(emit: Callable[[relax.Expr], relax.Var], data: relax.Var) -> relax.Expr:
        parts = []
        for index, tail in enumerate(tails):
            rows = emit(relax.op.reshape(data, (3, 8)))
            part = emit(relax.op.matmul(rows, relax.const(draw(8, 4 + index, seed=index))))
            for name, value in tail.items():
                operands = [part, relax.const(value)]
                if name == "over":
                    operands.reverse()
                operator = getattr(relax.op, "divide" if name == "over" else name)
                part = emit(operator(*operands))
            parts.append(emit(relax.op.permute_dims(part)))
        return relax.Tuple(parts)

    return relax_module(make, (1, 3, 8))


@pytest.mark.parametrize("name", ["multiply", "divide"])
def test_factors_of_some_parts_are_factors_of_columns(name: str) -> None:
    """Exported attention scales queries and keys, each by a number, and values by none."""
    module = _parts([{name: draw(1)}, {"add": draw(5), name: draw(1, 5)}, {"add": draw(1, 6)}, {}])

    merged = ProductMerger(module).run(module)

    calls = re.findall(r"R\.(\w+)\(", merged.script())
    assert [calls.count(each) for each in ("matmul", "add", name)] == [1, 1, 1]
    actual, expected = (run_network(each, draw(1, 3, 8)) for each in (merged, module))
    for left, right in zip(actual, expected, strict=True):
        assert difference(left, right) < 1e-6


def test_numbers_over_products_stay() -> None:
    """A constant divided by a product is not a product divided by a constant."""
    module = _parts([{"over": draw(1)}, {"over": draw(1)}])

    assert ProductMerger(module).run(module).script().count("R.matmul(") == 2


def test_biases_that_add_an_axis_stay(save: Save, target: TargetInfo) -> None:
    """Their sum has three axes, and its second are not the columns."""
    nodes = [node for name in "qkv" for node in _head(name, bias=True)]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("MatMul", ["s", "v"], ["y"]),
    ]
    weights = {f"w{name}": draw(16, 24, seed=i) for i, name in enumerate("qkv")}
    weights |= {f"b{name}": draw(1, 1, 24, seed=i + 3) for i, name in enumerate("qkv")}
    weights["heads"] = np.array([1, 5, 2, 12])

    assert checked_names(save(nodes, (5, 16), weights), target)


def test_products_with_tails_of_their_own_stay(save: Save, target: TargetInfo) -> None:
    """A gate is fused into its product, which a slice would prevent."""
    nodes = [
        helper.make_node("MatMul", ["data", "w"], ["p"]),
        helper.make_node("MatMul", ["data", "v"], ["q"]),
        helper.make_node("Sigmoid", ["p"], ["s"]),
        helper.make_node("Mul", ["q", "s"], ["y"]),
    ]
    model = save(nodes, (5, 16), {"w": draw(16, 24), "v": draw(16, 24, seed=1)})

    assert all("slice" not in name for name in checked_names(model, target))


def test_products_that_are_outputs_stay() -> None:
    """Their tuple does not count as a movement of the results."""
    weights = [relax.const(np.ones((8, n), "float32")) for n in (3, 4)]
    module = relax_module(
        lambda emit, data: relax.Tuple([emit(relax.op.matmul(data, each)) for each in weights]),
        (2, 8),
    )

    tvm.ir.assert_structural_equal(ProductMerger(module).run(module), module)
