"""The rules by which operators take and give layouts: one entry per operator.

Those whose attributes name axes are in :mod:`axes`.
"""

import math
from collections.abc import Sequence

from tvm import relax

from tuner.engines.relax.graph.layout.layouts import Layout
from tuner.engines.relax.graph.layout.rules import axes
from tuner.engines.relax.graph.layout.scope import Operand, Rule, Scope, Stored, Value, with_attrs
from tuner.engines.relax.ir.tensor_types import shape_of

_CHANNELS_FIRST = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
_CHANNELS_LAST = {3: "NWC", 4: "NHWC", 5: "NDHWC"}


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


def reshape(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Give the same memory other axes."""
    value = operands[0]
    if not isinstance(value, Value):
        return None
    layout = value.layout.reshape(shape_of(call))
    if layout is None or (value.layout.is_identity and layout.is_identity):
        return None
    return Stored(scope.reshape(value.expr, layout.stored_shape), layout)


def permute_dims(_: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Give the axes another order."""
    value = operands[0]
    if not isinstance(value, Value):
        return None
    n_axes = len(value.layout.factors)
    axes = range(n_axes)[::-1] if call.attrs.axes is None else call.attrs.axes
    return Stored(value.expr, value.layout.permute([int(axis) % n_axes for axis in axes]))


def pixel_shuffle(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Move factors of the channels into the axes of the image; TVM has no kernel for it."""
    value = operands[0]
    if not isinstance(value, Value):
        return None
    r = int(call.attrs.upscale_factor)
    *outer, n_channels, height, width = value.layout.shape
    n = len(outer)
    cut = value.layout.reshape((*outer, n_channels // r**2, r, r, height, width))
    if cut is None:
        return None
    moved = cut.permute([*range(n), n, n + 3, n + 1, n + 4, n + 2])
    layout = moved.reshape(shape_of(call))
    if layout is None:
        return None
    return Stored(scope.reshape(value.expr, layout.stored_shape), layout)


def channels_last(shape: Sequence[int]) -> Layout:
    """Return the layout (N, ..., C) of a tensor (N, C, ...)."""
    return Layout.permuted(shape, [0, *range(2, len(shape)), 1])


def convolution(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Convolve channels last, wherever the operands come from."""
    data, weight = operands
    if not isinstance(data, Value) or not isinstance(weight, Value):
        return None
    shape, attrs = data.layout.shape, call.attrs
    rank = len(shape)
    kernel = "OI" + _CHANNELS_FIRST[rank][2:]
    layouts = [str(attrs.data_layout), str(attrs.out_layout or attrs.data_layout)]
    if layouts != [_CHANNELS_FIRST[rank]] * 2 or str(attrs.kernel_layout) != kernel:
        return None
    args = [scope.convert(value, channels_last(value.layout.shape)) for value in (data, weight)]
    named = {"data_layout": _CHANNELS_LAST[rank], "out_layout": _CHANNELS_LAST[rank]}
    named["kernel_layout"] = "O" + _CHANNELS_FIRST[rank][2:] + "I"
    return Stored(with_attrs(call, args, **named), channels_last(shape_of(call)))


def pooling(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Pool in any order of the axes: the attribute spells it."""
    (data,) = operands
    if not isinstance(data, Value) or data.layout.is_identity:
        return None
    names = str(call.attrs.layout)
    layout = data.layout.whole(range(len(data.layout.factors)))
    if len(names) != len(layout.factors) or str(call.attrs.out_layout or names) != names:
        return None
    spelled = "".join(names[axis] for axis in layout.permutation)
    args = [scope.convert(data, layout)]
    stored = with_attrs(call, args, layout=spelled, out_layout=spelled)
    return Stored(stored, layout.with_shape(shape_of(call)))


def resize(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Resize channels last if the channels are last already."""
    data, *rest = operands
    if not isinstance(data, Value) or data.layout.is_identity or data.layout.order[-1][0] != 1:
        return None
    rank = len(data.layout.factors)
    if str(call.attrs.layout) != _CHANNELS_FIRST.get(rank):
        return None
    args = [scope.convert(data, channels_last(data.layout.shape)), *rest]
    stored = with_attrs(call, args, layout=_CHANNELS_LAST[rank])
    return Stored(stored, channels_last(shape_of(call)))


def matmul(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Multiply rows in any order by a constant matrix, its rows in the order of the features."""
    data, weight = operands
    if not isinstance(data, Value) or not isinstance(weight, Value):
        return None
    layout = data.layout
    features = len(layout.factors) - 1
    if layout.is_identity or weight.array is None or len(weight.layout.shape) != 2:
        return None
    if not all(layout.is_whole(axis) for axis in range(features)) or features == 0:
        return None
    n_factors = len(layout.factors[features])
    if any(axis != features for axis, _ in layout.order[-n_factors:]):
        return None
    own = tuple((0, index) for _, index in layout.order[-n_factors:])
    rows = Layout((layout.factors[features], (weight.layout.shape[1],)), (*own, (1, 0)))
    packed = rows.apply(weight.array).reshape(weight.layout.shape)
    order = (*layout.order[:-n_factors], (features, 0))
    shape = (*layout.shape[:features], weight.layout.shape[1])
    out = Layout((*layout.factors[:features], (shape[-1],)), order)
    stored = (*out.stored_shape[:-1], math.prod(layout.factors[features]))
    expr = scope.reshape(data.expr, stored)
    constant = relax.const(packed, str(weight.expr.ty.dtype))
    if out.shape != shape_of(call):
        return None
    return Stored(relax.Call(call.op, [expr, constant], call.attrs, call.ty_args), out)


_ELEMENTWISE = """
abs acos acosh add asin asinh astype atan atan2 atanh bitwise_and bitwise_not bitwise_or
bitwise_xor ceil clip cos cosh divide equal erf ewise_fma exp floor floor_divide floor_mod greater
greater_equal isfinite isinf isnan left_shift less less_equal log log_add_exp logical_and
logical_not logical_or logical_xor maximum minimum mod multiply negative nn.gelu nn.gelu_tanh
nn.leakyrelu nn.relu nn.selu nn.silu nn.softplus not_equal power right_shift round rsqrt sigmoid
sign sin sinh sqrt square subtract tan tanh trunc where
"""
_POOLINGS = """
nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d nn.avg_pool1d nn.avg_pool2d
nn.avg_pool3d nn.max_pool1d nn.max_pool2d nn.max_pool3d
"""

#: The rules by operator. An operator without one gets its operands as the network sees them.
RULES: dict[str, Rule] = {
    **dict.fromkeys((f"relax.{name}" for name in _ELEMENTWISE.split()), elementwise),
    "relax.broadcast_to": broadcast_to,
    "relax.expand_dims": reshape,
    "relax.flatten": reshape,
    "relax.nn.batch_flatten": reshape,
    "relax.nn.pixel_shuffle": pixel_shuffle,
    "relax.permute_dims": permute_dims,
    "relax.reshape": reshape,
    "relax.squeeze": reshape,
    **axes.RULES,
    **{f"relax.nn.conv{n}d": convolution for n in (1, 2, 3)},
    **{f"relax.image.resize{n}d": resize for n in (2, 3)},
    **{f"relax.{name}": pooling for name in _POOLINGS.split()},
    "relax.matmul": matmul,
}
