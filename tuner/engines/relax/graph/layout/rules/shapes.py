"""Operators that only rename axes: they change the layout and leave memory as it is."""

from collections.abc import Sequence

from tvm import relax

from tuner.engines.relax.graph.layout.scope import Operand, Rule, Scope, Stored, Value
from tuner.engines.relax.ir.tensor_types import shape_of


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


RULES: dict[str, Rule] = {
    "relax.expand_dims": reshape,
    "relax.flatten": reshape,
    "relax.nn.batch_flatten": reshape,
    "relax.nn.pixel_shuffle": pixel_shuffle,
    "relax.permute_dims": permute_dims,
    "relax.reshape": reshape,
    "relax.squeeze": reshape,
}
