"""Operators with attributes that name axes."""

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

from tuner.engines.relax.graph.layout.layouts import Layout
from tuner.engines.relax.graph.layout.scope import Operand, Rule, Scope, Stored, Value, with_attrs
from tuner.engines.relax.ir.tensor_types import shape_of


def reduction(_: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Reduce all dimensions that hold the axes."""
    (value,) = operands
    if not isinstance(value, Value) or value.layout.is_identity:
        return None
    layout, attrs = value.layout, call.attrs
    axes = _axes(attrs.axis, layout)
    dims = sorted(dim for axis in axes for dim in layout.dims_of(axis))
    reduced = with_attrs(call, [value.expr], axis=dims)
    if not attrs.keepdims:
        return Stored(reduced, layout.drop(axes))
    ones = [1 if axis in axes else extent for axis, extent in enumerate(layout.shape)]
    return Stored(reduced, layout.with_shape(ones))


def along(name: str, n_data: int = 1) -> Rule:
    """Return the rule of an operator along one axis that keeps the shape.

    Args:
        name: Attribute with the axis.
        n_data: Number of operands in the layout; others have no layout of their own.
    """

    def rule(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
        data = [operand for operand in operands[:n_data] if isinstance(operand, Value)]
        axis = getattr(call.attrs, name)
        if len(data) < n_data or axis is None or all(v.layout.is_identity for v in data):
            return None
        layout = max(data, key=lambda value: value.n_bytes).layout
        n_axes = len(layout.factors)
        layout = layout.whole([int(axis) % n_axes] if n_data == 1 else range(n_axes))
        args = [scope.convert(value, layout.with_shape(value.layout.shape)) for value in data]
        (dim,) = layout.dims_of(int(axis) % n_axes)
        stored = with_attrs(call, [*args, *_plain(scope, operands[n_data:])], **{name: dim})
        return Stored(stored, layout.with_shape(shape_of(call)))

    return rule


def normalisation(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Normalise over one axis; over several, scale and shift have a shape of their own."""
    value = operands[0]
    if not isinstance(value, Value) or value.layout.is_identity or len(call.attrs.axes) != 1:
        return None
    axis = _axis(call.attrs.axes[0], value.layout)
    layout = value.layout.whole([axis])
    args = [scope.convert(value, layout), *_plain(scope, operands[1:])]
    return Stored(with_attrs(call, args, axes=layout.dims_of(axis)), layout)


def rms_norm(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Normalise over the last dimension: TVM's kernel broadcasts its scale there only."""
    value = operands[0]
    if not isinstance(value, Value) or value.layout.order[-1][0] != len(value.layout.factors) - 1:
        return None
    return normalisation(scope, call, operands)


def group_norm(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Normalise groups of channels over other axes, all of them whole."""
    value = operands[0]
    if not isinstance(value, Value) or value.layout.is_identity:
        return None
    layout = value.layout.whole(range(len(value.layout.factors)))
    channels = _axis(call.attrs.channel_axis, layout)
    axes = [layout.dims_of(axis)[0] for axis in _axes(call.attrs.axes, layout)]
    args = [scope.convert(value, layout), *_plain(scope, operands[1:])]
    changes = {"channel_axis": layout.dims_of(channels)[0], "axes": sorted(axes)}
    return Stored(with_attrs(call, args, **changes), layout)


def concat(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Concatenate in the layout of the largest operand."""
    (values,) = operands
    if not isinstance(values, tuple) or all(value.layout.is_identity for value in values):
        return None
    largest = max(values, key=lambda value: (value.n_bytes, not value.layout.is_identity))
    axis = _axis(0 if call.attrs.axis is None else call.attrs.axis, largest.layout)
    layout = largest.layout.whole([axis])
    args = [scope.convert(value, layout.with_shape(value.layout.shape)) for value in values]
    (dim,) = layout.dims_of(axis)
    return Stored(relax.op.concat(args, dim), layout.with_shape(shape_of(call)))


def split(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Split along an axis that is whole."""
    along_axis = _along_whole_axis(scope, call, operands)
    if along_axis is None:
        return None
    stored, layout, _ = along_axis
    fields = tuple(
        layout.with_shape([int(extent) for extent in field.shape]) for field in call.ty.fields
    )
    return Stored(stored, fields)


def argument(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Find the extreme along one axis; over all axes, the position is as the network sees it."""
    along_axis = _along_whole_axis(scope, call, operands)
    if along_axis is None:
        return None
    stored, layout, axis = along_axis
    if not call.attrs.keepdims:
        return Stored(stored, layout.drop([axis]))
    ones = [1 if a == axis else extent for a, extent in enumerate(layout.shape)]
    return Stored(stored, layout.with_shape(ones))


def take(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Take slices of one axis by a scalar or a vector of positions."""
    value, positions = operands
    if not isinstance(value, Value) or value.layout.is_identity or call.attrs.axis is None:
        return None
    if not isinstance(positions, Value) or len(positions.layout.factors) > 1:
        return None
    axis = _axis(call.attrs.axis, value.layout)
    layout = value.layout.whole([axis])
    args = [scope.convert(value, layout), scope.logical(positions)]
    stored = with_attrs(call, args, axis=layout.dims_of(axis)[0])
    if not positions.layout.factors:
        return Stored(stored, layout.drop([axis]))
    return Stored(stored, layout.with_shape(shape_of(call)))


def strided_slice(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Slice axes that are whole."""
    value, axes, *limits = operands
    if not isinstance(value, Value) or value.layout.is_identity:
        return None
    if not isinstance(axes, relax.Tuple):
        return None
    sliced = [_axis(axis, value.layout) for axis in axes.fields]
    layout = value.layout.whole(sliced)
    dims = [tvm.tirx.IntImm("int64", layout.dims_of(axis)[0]) for axis in sliced]
    args = [scope.convert(value, layout), relax.Tuple(dims), *limits]
    stored = relax.Call(call.op, args, call.attrs, call.ty_args)
    return Stored(stored, layout.with_shape(shape_of(call)))


def per_axis(name: str, n_numbers: int, neutral: int) -> Rule:
    """Return the rule of an operator with numbers for every axis.

    Args:
        name: Attribute with the numbers of all axes, one after the other.
        n_numbers: Numbers per axis.
        neutral: Number that leaves an axis as it is.
    """

    def rule(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
        (value,) = operands
        if not isinstance(value, Value) or value.layout.is_identity:
            return None
        numbers = [int(number) for number in getattr(call.attrs, name)]
        n_axes = len(value.layout.factors)
        if len(numbers) != n_axes * n_numbers:
            return None
        groups = [numbers[axis * n_numbers : (axis + 1) * n_numbers] for axis in range(n_axes)]
        changed = [axis for axis in range(n_axes) if groups[axis] != [neutral] * n_numbers]
        layout = value.layout.whole(changed)
        stored = [
            number
            for axis, _ in layout.order
            for number in (groups[axis] if axis in changed else [neutral] * n_numbers)
        ]
        args = [scope.convert(value, layout)]
        return Stored(with_attrs(call, args, **{name: stored}), layout.with_shape(shape_of(call)))

    return rule


def repeat(scope: Scope, call: relax.Call, operands: Sequence[Operand]) -> Stored | None:
    """Repeat the elements of one axis."""
    along_axis = _along_whole_axis(scope, call, operands)
    if along_axis is None:
        return None
    stored, layout, _ = along_axis
    return Stored(stored, layout.with_shape(shape_of(call)))


def _along_whole_axis(
    scope: Scope, call: relax.Call, operands: Sequence[Operand]
) -> tuple[relax.Call, Layout, int] | None:
    """Return a call along one axis, which is whole, its layout and the axis; None without one."""
    (value,) = operands
    if not isinstance(value, Value) or value.layout.is_identity or call.attrs.axis is None:
        return None
    axis = _axis(call.attrs.axis, value.layout)
    layout = value.layout.whole([axis])
    stored = with_attrs(call, [scope.convert(value, layout)], axis=layout.dims_of(axis)[0])
    return stored, layout, axis


def _axis(axis: Any, layout: Layout) -> int:
    return int(axis) % len(layout.factors)


def _axes(axes: Any, layout: Layout) -> list[int]:
    return list(range(len(layout.factors))) if axes is None else [_axis(a, layout) for a in axes]


def _plain(scope: Scope, operands: Sequence[Operand]) -> list[relax.Expr]:
    return [scope.logical(o) if isinstance(o, Value) else o for o in operands]


def _all(names: str, rule: Callable[..., Any]) -> dict[str, Rule]:
    return {f"relax.{name}": rule for name in names.split()}


RULES: dict[str, Rule] = {
    **_all("max mean min prod std sum variance", reduction),
    **_all("cumprod cumsum nn.log_softmax nn.prelu nn.softmax", along("axis")),
    **_all("dequantize flip quantize", along("axis")),
    "relax.nn.layer_norm": normalisation,
    "relax.nn.rms_norm": rms_norm,
    **_all("nn.group_norm nn.instance_norm", group_norm),
    **_all("argmax argmin", argument),
    "relax.concat": concat,
    "relax.gather_elements": along("axis", 2),
    "relax.nn.pad": per_axis("pad_width", 2, 0),
    "relax.repeat": repeat,
    "relax.split": split,
    "relax.strided_slice": strided_slice,
    "relax.take": take,
    "relax.tile": per_axis("repeats", 1, 1),
}
