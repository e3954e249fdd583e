"""Each operator computes the same in the layout of its operands, and hands the layout on."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.tuner.engines.relax.conftest import Array, draw
from tests.tuner.engines.relax.networks import run_network
from tuner.engines.relax.graph.layout.assignment import assign_layouts
from tuner.engines.relax.graph.layout.rules.operators import RULES

_OPS = relax.op
# An operation on the result of a convolution, of shape (2, 8, 4, 6), and on the network's input.
Case = Callable[[relax.BlockBuilder, relax.Var, relax.Var], relax.Expr]


def constant(*shape: int, seed: int = 3) -> relax.Expr:
    """Return a random constant."""
    return relax.const(draw(*shape, seed=seed), "float32")


def integers(*values: int) -> relax.Expr:
    """Return a vector of integers."""
    return relax.const(np.array(values, "int64"), "int64")


def chain(*steps: Callable[[Any], relax.Expr]) -> Case:
    """Return the operation that applies some steps, one after the other."""

    def build(builder: relax.BlockBuilder, x: relax.Var, _: relax.Var) -> relax.Expr:
        for step in steps[:-1]:
            x = builder.emit(step(x))
        return steps[-1](x)

    return build


def of_split(builder: relax.BlockBuilder, x: relax.Var, _: relax.Var) -> relax.Expr:
    """Multiply two parts of the channels."""
    parts = builder.emit(_OPS.split(x, [3, 6], 1))
    left, right = (builder.emit(relax.TupleGetItem(parts, index)) for index in (0, 1))
    return _OPS.multiply(left, right)


def square(operation: Callable[[Any, Any], relax.Expr]) -> Case:
    """Return the operation on square images and their transposes."""

    def build(builder: relax.BlockBuilder, x: relax.Var, _: relax.Var) -> relax.Expr:
        images = builder.emit(_OPS.strided_slice(x, [3], [1], [5]))
        return operation(images, builder.emit(_OPS.permute_dims(images, (0, 1, 3, 2))))

    return build


CASES: dict[str, Case] = {
    "relu": chain(_OPS.nn.relu),
    "clip": chain(lambda x: _OPS.clip(x, -0.5, 0.5)),
    "leaky": chain(lambda x: _OPS.nn.leakyrelu(x, 0.1)),
    "hard swish": lambda builder, x, _: _OPS.multiply(
        x, builder.emit(_OPS.clip(builder.emit(_OPS.add(x, constant())), 0, 6))
    ),
    "constant per channel": chain(lambda x: _OPS.maximum(x, constant(8, 1, 1))),
    "constant per pixel": chain(lambda x: _OPS.multiply(constant(4, 6), x)),
    "variable per channel": lambda builder, x, _: _OPS.multiply(
        x, builder.emit(_OPS.mean(x, [2, 3], True))
    ),
    "variable per row": lambda builder, x, _: _OPS.add(
        builder.emit(_OPS.mean(x, [0, 1, 3], True)), x
    ),
    "where": chain(lambda x: _OPS.where(_OPS.greater(x, constant()), x, constant(8, 1, 1))),
    "broadcast_to": lambda builder, x, _: _OPS.broadcast_to(
        builder.emit(_OPS.mean(x, [2], True)), (2, 8, 5, 6)
    ),
    "sum with the transpose": square(_OPS.add),
    "product with the transpose of an input": lambda builder, _, data: _OPS.multiply(
        cut := builder.emit(_OPS.strided_slice(data, [2, 3], [0, 0], [4, 4])),
        builder.emit(_OPS.permute_dims(cut, (0, 1, 3, 2))),
    ),
    "input": lambda builder, x, data: _OPS.add(
        x, builder.emit(_OPS.strided_slice(data, [1, 2, 3], [0, 0, 0], [1, 4, 6]))
    ),
    "mean": chain(lambda x: _OPS.mean(x, [2, 3])),
    "sum": chain(lambda x: _OPS.sum(x, [1])),
    "max": chain(lambda x: _OPS.max(x, [-1], True)),
    "variance": chain(lambda x: _OPS.variance(x, [1, 3], True)),
    "mean of all": chain(_OPS.mean),
    "softmax": chain(lambda x: _OPS.nn.softmax(x, 1)),
    "log_softmax": chain(lambda x: _OPS.nn.log_softmax(x, -1)),
    "cumsum": chain(lambda x: _OPS.cumsum(x, 2)),
    "cumsum of all": chain(lambda x: _OPS.cumsum(x, None)),
    "flip": chain(lambda x: _OPS.flip(x, 3)),
    "prelu": chain(lambda x: _OPS.nn.prelu(x, constant(8), 1)),
    "layer_norm": chain(lambda x: _OPS.nn.layer_norm(x, constant(6), constant(6), [-1])),
    "layer_norm of channels": chain(lambda x: _OPS.nn.layer_norm(x, constant(8), constant(8), [1])),
    "layer_norm of images": chain(
        lambda x: _OPS.nn.layer_norm(x, constant(4, 6), constant(4, 6), [2, 3])
    ),
    "rms_norm": chain(lambda x: _OPS.nn.rms_norm(x, constant(6), [3])),
    "rms_norm of channels": chain(
        lambda x: _OPS.permute_dims(x, (0, 2, 3, 1)),
        lambda x: _OPS.nn.rms_norm(x, constant(8), [-1]),
    ),
    "group_norm": chain(lambda x: _OPS.nn.group_norm(x, constant(8), constant(8), 2, 1, [2, 3])),
    "instance_norm": chain(lambda x: _OPS.nn.instance_norm(x, constant(8), constant(8), 1, [2, 3])),
    "concat": chain(lambda x: _OPS.concat([x, x, constant(2, 1, 4, 6)], 1)),
    "concat of rows": chain(lambda x: _OPS.concat([x, constant(2, 8, 2, 6)], -2)),
    "split": of_split,
    "argmax": chain(lambda x: _OPS.argmax(x, 1)),
    "argmin": chain(lambda x: _OPS.argmin(x, 3, True)),
    "argmax of all": chain(_OPS.argmax),
    "take": chain(lambda x: _OPS.take(x, integers(3, 1, 6), 1)),
    "take one": chain(lambda x: _OPS.take(x, relax.const(2, "int64"), 2)),
    "gather": chain(
        lambda x: _OPS.gather_elements(
            x, relax.const(np.arange(16).reshape(2, 1, 2, 4) % 8, "int64"), 1
        )
    ),
    "slice": chain(lambda x: _OPS.strided_slice(x, [1, 3], [1, 0], [7, 6], [2, 3])),
    "pad": chain(lambda x: _OPS.nn.pad(x, [0, 0, 1, 2, 3, 4, 0, 1], "constant", 1.5)),
    "pad by reflection": chain(lambda x: _OPS.nn.pad(x, [0, 0, 0, 0, 1, 2, 3, 1], "reflect")),
    "repeat": chain(lambda x: _OPS.repeat(x, 2, 2)),
    "tile": chain(lambda x: _OPS.tile(x, [1, 2, 3, 1])),
    "max_pool": chain(lambda x: _OPS.nn.max_pool2d(x, (3, 2), (1, 2), (1, 0, 1, 0))),
    "avg_pool": chain(lambda x: _OPS.nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1, 1, 1))),
    "adaptive pool": chain(lambda x: _OPS.nn.adaptive_avg_pool2d(x, (2, 3))),
    "pool across channels": chain(
        lambda x: _OPS.expand_dims(x, 1),
        lambda x: _OPS.nn.avg_pool3d(x, (3, 1, 1), (1, 1, 1), (1, 0, 0, 1, 0, 0)),
        lambda x: _OPS.squeeze(x, 1),
    ),
    "resize": chain(lambda x: _OPS.image.resize2d(x, (8, 9))),
    "resize by cubic": chain(lambda x: _OPS.image.resize2d(x, (8, 9), method="cubic")),
    "flatten": chain(_OPS.flatten),
    "flatten and dense": chain(
        lambda x: _OPS.reshape(x, (2, 192)), lambda x: _OPS.matmul(x, constant(192, 5))
    ),
    "tokens and dense": chain(
        lambda x: _OPS.reshape(x, (2, 8, 24)),
        lambda x: _OPS.permute_dims(x, (0, 2, 1)),
        lambda x: _OPS.matmul(x, constant(8, 5)),
    ),
    "dense of rows": chain(lambda x: _OPS.matmul(x, constant(6, 5))),
    "product of variables": lambda builder, x, _: _OPS.matmul(
        x, builder.emit(_OPS.permute_dims(x, (0, 1, 3, 2)))
    ),
    "permute_dims": chain(lambda x: _OPS.permute_dims(x, (0, 2, 3, 1)), _OPS.nn.relu),
    "reversed": chain(_OPS.permute_dims, _OPS.nn.relu),
    "channel shuffle": chain(
        lambda x: _OPS.reshape(x, (2, 2, 4, 4, 6)),
        lambda x: _OPS.permute_dims(x, (0, 2, 1, 3, 4)),
        lambda x: _OPS.reshape(x, (2, 8, 4, 6)),
        lambda x: _OPS.add(x, constant(8, 1, 1)),
        lambda x: _OPS.mean(x, [1, 3], True),
    ),
    "group statistics": lambda builder, x, _: _OPS.subtract(
        cut := builder.emit(_OPS.reshape(x, (2, 2, 96))), builder.emit(_OPS.mean(cut, [2], True))
    ),
    "reshape without common factors": chain(lambda x: _OPS.reshape(x, (3, 128))),
    "pixel shuffle": chain(lambda x: _OPS.nn.pixel_shuffle(x, 2), _OPS.nn.relu),
    "expand and squeeze": chain(
        lambda x: _OPS.expand_dims(x, [0, 3]), _OPS.nn.relu, lambda x: _OPS.squeeze(x, [0, 3])
    ),
    "grouped convolution": chain(
        lambda x: _OPS.nn.conv2d(x, constant(4, 2, 3, 3), groups=4, padding=1, dilation=2)
    ),
    "depthwise convolution": chain(
        lambda x: _OPS.nn.conv2d(x, constant(8, 1, 3, 3), groups=8, strides=(2, 1))
    ),
    "convolution of channels last": chain(
        lambda x: _OPS.nn.conv2d(x, constant(3, 3, 6, 2), data_layout="NHWC", kernel_layout="HWIO")
    ),
    "convolution of 1 dimension": chain(
        lambda x: _OPS.reshape(x, (2, 8, 24)),
        lambda x: _OPS.nn.conv1d(x, constant(6, 4, 3), 2, 1, 2, groups=2),
        lambda x: _OPS.nn.max_pool1d(x, 3, 2),
    ),
    "convolution of 3 dimensions": chain(
        lambda x: _OPS.reshape(x, (2, 8, 2, 2, 6)),
        lambda x: _OPS.nn.conv3d(x, constant(4, 8, 1, 2, 3), padding=(0, 1, 1)),
        lambda x: _OPS.nn.max_pool3d(x, (1, 2, 2)),
        lambda x: _OPS.nn.adaptive_avg_pool3d(x, (1, 1, 2)),
    ),
    "quantize": chain(
        lambda x: _OPS.quantize(x, constant(8), relax.const(np.zeros(8, "int8")), 1, "int8"),
        lambda x: _OPS.astype(x, "float32"),
    ),
}
# What TVM has no kernel for, in other operators.
_REFERENCES = {
    "pixel shuffle": chain(
        lambda x: _OPS.reshape(x, (2, 2, 2, 2, 4, 6)),
        lambda x: _OPS.permute_dims(x, (0, 1, 4, 2, 5, 3)),
        lambda x: _OPS.reshape(x, (2, 2, 8, 12)),
        _OPS.nn.relu,
    )
}
# Their memory order cannot be that of their operand, or they have no rule for it.
_COPIES = {
    "argmax of all": 1,
    "cumsum of all": 1,
    "layer_norm of images": 1,
    "product of variables": 2,
    "sum with the transpose": 1,
    "product with the transpose of an input": 1,
    "rms_norm": 1,
    "dense of rows": 1,
    "flatten": 1,
    "input": 1,
    "reshape without common factors": 1,
    "convolution of channels last": 1,
}


def network(cases: list[Case]) -> tvm.IRModule:
    """Return the network that convolves its input and returns the result of each operation."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((2, 3, 6, 8), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            x = builder.emit(_OPS.nn.conv2d(data, constant(8, 3, 3, 3)))
            results = [builder.emit(case(builder, x, data)) for case in cases]
            output = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(output)
    return builder.get()


def calls(module: tvm.IRModule, name: str) -> list[relax.Call]:
    """Return the calls of an operator."""
    matches: list[relax.Call] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "") == f"relax.{name}":
            matches.append(expr)

    relax.analysis.post_order_visit(module["main"], visit)
    return matches


def evaluate(module: tvm.IRModule) -> list[Array]:
    """Run a network on random numbers."""
    return run_network(module, draw(2, 3, 6, 8))


@pytest.mark.parametrize("name", [name for name in CASES if "transpose" in name])
def test_a_square_tensor_is_not_its_transpose(name: str) -> None:
    """They are the same variable in two layouts, of equal shapes."""
    case = CASES[name]

    (actual,), (expected,) = (
        evaluate(module) for module in (assign_layouts(network([case])), network([case]))
    )

    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow("compiles kernels for many seconds")
def test_every_rule_computes_the_same() -> None:
    """The outputs of all operations equal those of the network in its own layout."""
    module = assign_layouts(network(list(CASES.values())))
    reference = network(list((CASES | _REFERENCES).values()))

    pairs = zip(evaluate(module), evaluate(reference), strict=True)

    for name, (actual, expected) in zip(CASES, pairs, strict=True):
        assert actual.shape == expected.shape, name
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_no_transpose_is_between_two_operators(name: str) -> None:
    """Only the network's input and output are transposed."""
    module = assign_layouts(network([CASES[name]]))

    assert len(calls(module, "permute_dims")) <= 2 + _COPIES.get(name, 0)


def test_every_case_is_channels_last() -> None:
    """No convolution and no pooling of any case stays channels first."""
    module = assign_layouts(network(list(CASES.values())))

    attributes = [
        str(call.attrs.data_layout) for n in (1, 2, 3) for call in calls(module, f"nn.conv{n}d")
    ]
    assert set(attributes) == {"NWC", "NHWC", "NDHWC"}


def test_rules_name_operators_of_tvm() -> None:
    """A misspelt entry of the table would be ignored."""
    known = set(tvm.ir.Op.list_op_names())

    assert sorted(set(RULES) - known) == []
