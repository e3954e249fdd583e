"""Operators that treat elements apart, with operands that are broadcast."""

from collections.abc import Sequence

from tvm import relax

from tuner.engines.relax.graph.layout.layouts import Layout
from tuner.engines.relax.graph.layout.scope import Operand, Rule, Scope, Stored, Value
from tuner.engines.relax.ir.tensor_types import shape_of


def elementwise(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Compute in the layout of the largest operand; others, and constants, follow it."""
    values = [operand for operand in operands if isinstance(operand, Value)]
    if all(value.layout.is_identity for value in values):
        return None
    layout = common_layout(values, shape_of(call))
    args = [follow(scope, o, layout) if isinstance(o, Value) else o for o in operands]
    return Stored(relax.Call(call.op, args, call.attrs, call.ty_args), layout)


def common_layout(values: Sequence[Value], shape: Sequence[int]) -> Layout:
    """Return the layout for a broadcast of some tensors: that of the largest.

    Among equals, one that differs from what the network sees goes first.
    """
    largest = max(values, key=lambda value: (value.n_bytes, not value.layout.is_identity))
    return largest.layout.with_rank(len(shape)).with_shape(shape)


def follow(scope: Scope, value: Value, layout: Layout) -> relax.Expr:
    """Return an operand of a broadcast in the layout of the result; scalars stay."""
    shape = value.layout.shape
    if not shape:
        return value.expr
    padded = (1,) * (len(layout.factors) - len(shape)) + shape
    return scope.convert(value, layout.with_shape(padded))


def broadcast_to(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Broadcast in the layout of the operand."""
    (value, *_) = operands
    if not isinstance(value, Value) or value.layout.is_identity:
        return None
    layout = common_layout([value], shape_of(call))
    expr = follow(scope, value, layout)
    return Stored(relax.op.broadcast_to(expr, layout.stored_shape), layout)


_OPS = """
abs acos acosh add asin asinh astype atan atan2 atanh bitwise_and bitwise_not bitwise_or
bitwise_xor ceil clip cos cosh divide equal erf ewise_fma exp floor floor_divide floor_mod greater
greater_equal isfinite isinf isnan left_shift less less_equal log log_add_exp logical_and
logical_not logical_or logical_xor maximum minimum mod multiply negative nn.gelu nn.gelu_tanh
nn.leakyrelu nn.relu nn.selu nn.silu nn.softplus not_equal power right_shift round rsqrt sigmoid
sign sin sinh sqrt square subtract tan tanh trunc where
"""

RULES: dict[str, Rule] = {f"relax.{name}": elementwise for name in _OPS.split()}
RULES["relax.broadcast_to"] = broadcast_to
