"""Definitions of softmax and normalisations for CPUs, which replace TVM's.

They compute half precision in float32, and what follows elementwise is fused into them: TVM takes
a definition with several reductions for one that nothing can be fused into.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.relax import BlockBuilder

from tuner.engines.relax.graph.definitions import channel_norms, softmax
from tuner.engines.relax.graph.definitions.channel_norms import WIDE, wide, wide_at
from tuner.engines.relax.graph.passes import masked_softmax
from tuner.engines.relax.graph.passes.visitor import dtype_of, name_of
from tuner.engines.relax.ir.tensor_types import shape_of
from tuner.engines.relax.triton.expressions.printer import HALF

Legalization = Callable[[BlockBuilder, relax.Call], relax.Expr]

# TVM's patterns of kernels for its fusion: all is fused, elementwise tails are, or nothing is.
_INJECTIVE, _FUSABLE, _OPAQUE = 2, 4, 8


def _softmax(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    axis = int(call.attrs.axis)
    is_last = axis in (-1, len(call.ty.shape) - 1)
    hint = str(call.op.name).rpartition(".")[2]

    def define(x: te.Tensor) -> te.Tensor:
        return getattr(softmax, hint)(x) if is_last else getattr(topi.nn, hint)(x, axis)

    return builder.call_te(
        lambda x: softmax_of(define, x),
        call.args[0],
        primfunc_name_hint=hint,
        primfunc_attrs=_attributes(fusable=is_last),
    )


def _masked_softmax(*, has_lanes: bool) -> Legalization:
    """Return the definition of a softmax whose masked rows hold a number."""

    def legalize(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
        fill = masked_softmax.fill_of(call)
        define = partial(
            softmax.masked_softmax,
            fill=fill.value,
            replaces_nan=fill.replaces_nan,
            has_lanes=has_lanes,
        )
        return builder.call_te(
            lambda x: softmax_of(define, x),
            call.args[0],
            primfunc_name_hint="softmax",
            primfunc_attrs=_attributes(fusable=True),
        )

    return legalize


def _wide_softmax(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    """Define a softmax of TVM's in float32."""
    hint = str(call.op.name).rpartition(".")[2]
    define = getattr(topi.nn, hint)
    return builder.call_te(
        lambda x: softmax_of(lambda wide: define(wide, int(call.attrs.axis)), x),
        call.args[0],
        primfunc_name_hint=hint,
        primfunc_attrs=_attributes(fusable=True),
    )


def _layer_norm(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs, rank = call.attrs, len(call.ty.shape)
    axes = sorted(int(axis) % rank for axis in attrs.axes)
    return builder.call_te(
        lambda x, scale, shift: _normalised(x, axes, axes, scale, shift, attrs.epsilon),
        *call.args,
        primfunc_name_hint="layer_norm",
        primfunc_attrs=_attributes(fusable=axes == list(range(rank - len(axes), rank))),
    )


def _rms_norm(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs, rank = call.attrs, len(call.ty.shape)
    axes = sorted(int(axis) % rank for axis in attrs.axes)
    return builder.call_te(
        lambda x, scale: _normalised(x, axes, axes, scale, None, attrs.epsilon),
        *call.args,
        primfunc_name_hint="rms_norm",
        primfunc_attrs=_attributes(fusable=axes == list(range(rank - len(axes), rank))),
    )


def _group_norm(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    """Define a norm of groups of channels, or of each channel, over all other axes but the batch.

    Channels first, the axes of a group are the last ones. Channels last, they are not: statistics
    of each channel over parts of the positions are merged, and the result is a scale and a shift.
    """
    attrs, shape = call.attrs, shape_of(call)
    rank = len(shape)
    axis = int(attrs.channel_axis) % rank
    n_groups = int(getattr(attrs, "num_groups", shape[axis]))
    others = sorted(int(each) % rank for each in attrs.axes)
    batch = shape[0]
    if others != [each for each in range(1, rank) if each != axis] or axis not in (1, rank - 1):
        return call.op.get_attr("FLegalize")(builder, call)
    n_positions = math.prod(shape[each] for each in others)
    size = shape[axis] // n_groups
    data, scale, shift = call.args
    if axis == 1 and rank > 2:
        view = builder.emit(relax.op.reshape(data, (batch, n_groups, size, n_positions)))
        parameters = [relax.op.reshape(value, (n_groups, size)) for value in (scale, shift)]
        normalised = builder.call_te(
            lambda x, a, b: _normalised(x, [2, 3], [1, 2], a, b, attrs.epsilon),
            view,
            *map(builder.emit, parameters),
            primfunc_name_hint="group_norm",
            primfunc_attrs=_attributes(fusable=True),
        )
        return relax.op.reshape(builder.emit(normalised), shape)
    return channel_norms.define(builder, call, n_groups, n_positions)


def _norm_of_groups(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    """Define a norm of groups of channels, or of each channel, for GPUs.

    A group is a row, wherever the channels lie.
    """
    attrs, shape = call.attrs, shape_of(call)
    channels = int(attrs.channel_axis) % len(shape)
    others = [int(axis) % len(shape) for axis in attrs.axes]
    size = shape[channels] // int(getattr(attrs, "num_groups", shape[channels]))
    return builder.call_te(
        lambda x, scale, shift: _normalised(
            x, others, [channels], scale, shift, attrs.epsilon, groups={channels: size}
        ),
        *call.args,
        primfunc_name_hint=str(call.op.name).rpartition(".")[2],
        primfunc_attrs=_attributes(fusable=True),
    )


def _normalised(  # noqa: PLR0913  one for each part of a norm
    x: te.Tensor,
    axes: list[int],
    affine: list[int],
    scale: te.Tensor,
    shift: te.Tensor | None,
    epsilon: float,
    *,
    groups: Mapping[int, int] = MappingProxyType({}),
) -> te.Tensor:
    """Define a normalisation over some axes; without a shift, the mean stays in.

    Args:
        x: Data.
        axes: Axes of mean and variance.
        affine: Axes of scale and shift.
        scale: Factor of the result.
        shift: Summand of the result; None for the norm of a root mean square.
        epsilon: Summand of the variance.
        groups: Size of the groups of other axes, by axis; mean and variance are of a group.
    """
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    shape = [x.shape[axis] // groups.get(axis, 1) for axis in kept] or [1]
    # In the order of the elements, as a tile of a row is.
    axes = sorted({*axes, *(axis for axis, size in groups.items() if size > 1)})
    extents = [groups.get(axis, x.shape[axis]) for axis in axes]
    n = wide(math.prod(map(int, extents)))

    def group_of(place: Any) -> list[Any]:
        # TVM does not see that an axis of one group has one number.
        whole = {axis for axis, size in groups.items() if size == x.shape[axis]}
        return [0 if i in whole else place[i] // groups.get(i, 1) for i in kept] or [0]

    def reduce(name: str, value: Callable[..., Any]) -> te.Tensor:
        reduced = [
            te.reduce_axis((0, extent), name=f"k{axis}")
            for axis, extent in zip(axes, extents, strict=True)
        ]

        def element(*index: Any) -> Any:
            place: list[Any] = [0] * len(x.shape)
            for axis, each in zip(kept, index, strict=False):
                place[axis] = each * groups.get(axis, 1)
            for axis, each in zip(axes, reduced, strict=True):
                place[axis] = place[axis] + each
            return te.sum(value(index, place), axis=reduced)

        return te.compute(shape, element, name=name)

    if shift is None:
        squares = reduce("squares", lambda _, place: wide_at(x, *place) * wide_at(x, *place))
    else:
        sums = reduce("sums", lambda _, place: wide_at(x, *place))
        means = te.compute(shape, lambda *index: sums(*index) / n, name="means")
        squares = reduce(
            "squares",
            lambda index, place: (
                (wide_at(x, *place) - means(*index)) * (wide_at(x, *place) - means(*index))
            ),
        )
    factors = te.compute(
        shape,
        lambda *index: tirx.rsqrt(squares(*index) / n + tirx.const(epsilon, WIDE)),
        name="factors",
    )

    def result(*place: Any) -> Any:
        index = group_of(place)
        parameters = [place[axis] for axis in affine]
        value = wide_at(x, *place)
        if shift is not None:
            value = value - means(*index)
        value = value * factors(*index) * wide_at(scale, *parameters)
        if shift is not None:
            value = value + wide_at(shift, *parameters)
        return value.astype(x.dtype)

    return te.compute(x.shape, result, name="normalised")


def _unless_unfit(legalize: Legalization) -> Legalization:
    """Leave float64, which float32 cannot hold, and shapes that vary to the definition of TVM."""

    def choose(builder: Any, call: relax.Call) -> relax.Expr:
        is_static = all(isinstance(size, tirx.IntImm) for size in call.args[0].ty.shape)
        if str(call.ty.dtype) == "float64" or not is_static:
            return call.op.get_attr("FLegalize")(builder, call)
        return legalize(builder, call)

    return choose


def softmax_of(define: Callable[[te.Tensor], te.Tensor], x: te.Tensor) -> te.Tensor:
    """Define a softmax in float32."""
    if str(x.dtype) == WIDE:
        return define(x)
    return topi.cast(define(topi.cast(x, WIDE)), str(x.dtype))


def _attributes(*, fusable: bool) -> dict[str, Any]:
    return {"op_pattern": _FUSABLE if fusable else _OPAQUE}


LEGALIZATIONS: dict[str, Legalization] = {
    name: _unless_unfit(legalize)
    for name, legalize in {
        "relax.nn.softmax": _softmax,
        "relax.nn.log_softmax": _softmax,
        masked_softmax.NAME: _masked_softmax(has_lanes=True),
        "relax.nn.layer_norm": _layer_norm,
        "relax.nn.rms_norm": _rms_norm,
        "relax.nn.group_norm": _group_norm,
        "relax.nn.instance_norm": _group_norm,
    }.items()
}


def _take(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    """Define a gather that fuses with what is elementwise, which TVM takes none for."""
    attrs = call.attrs
    return builder.call_te(
        lambda data, indices: topi.take(data, indices, attrs.axis, mode=attrs.mode),
        *call.args,
        primfunc_name_hint="take",
        primfunc_attrs={"op_pattern": _INJECTIVE},
    )


def _sum(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    """Define a sum or a mean of half precision with the conversion of what it sums.

    TVM fuses nothing in front of a mean: the conversion would be a kernel that stores all in
    float32.
    """
    data: Any = call.args[0]
    data = builder.lookup_binding(data) if isinstance(data, relax.Var) else data
    if name_of(data) == "call_tir":
        (source, *others) = data.args[1]
        is_widened = dtype_of(source) in HALF and dtype_of(call) == WIDE
        if is_widened and not others and data.args[0].name_hint.startswith("cast"):
            return _sum_of(builder, call, source)
    return call.op.get_attr("FLegalize")(builder, call)


def _sum_of(builder: BlockBuilder, call: relax.Call, source: relax.Expr) -> relax.Expr:
    hint, shape = name_of(call), shape_of(source)
    axes = [int(axis) % len(shape) for axis in call.attrs.axis or range(len(shape))]
    n = math.prod(shape[axis] for axis in axes) if hint == "mean" else 1

    def define(x: te.Tensor) -> te.Tensor:
        total = topi.sum(topi.cast(x, WIDE), axes, bool(call.attrs.keepdims))
        return topi.divide(total, wide(n)) if n > 1 else total

    attributes = _attributes(fusable=True)
    return builder.call_te(define, source, primfunc_name_hint=hint, primfunc_attrs=attributes)


#: Definitions for GPUs, which compute half precision in float32 too.
GPU_LEGALIZATIONS: dict[str, Legalization] = {
    name: _unless_unfit(legalize)
    for name, legalize in {
        "relax.nn.softmax": _wide_softmax,
        "relax.nn.log_softmax": _wide_softmax,
        masked_softmax.NAME: _masked_softmax(has_lanes=False),
        "relax.nn.group_norm": _norm_of_groups,
        "relax.nn.instance_norm": _norm_of_groups,
        "relax.take": _take,
        "relax.mean": _sum,
        "relax.sum": _sum,
    }.items()
}
