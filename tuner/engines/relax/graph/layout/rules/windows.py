"""Convolutions, poolings and resizing: operators whose attributes spell a layout."""

from collections.abc import Sequence

from tvm import relax

from tuner.engines.relax.graph.layout.layouts import Layout
from tuner.engines.relax.graph.layout.scope import Operand, Rule, Scope, Stored, Value, with_attrs
from tuner.engines.relax.ir.tensor_types import shape_of

_CHANNELS_FIRST = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
_CHANNELS_LAST = {3: "NWC", 4: "NHWC", 5: "NDHWC"}


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


_POOLINGS = """
nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d nn.avg_pool1d nn.avg_pool2d
nn.avg_pool3d nn.max_pool1d nn.max_pool2d nn.max_pool3d
"""

RULES: dict[str, Rule] = {
    **{f"relax.nn.conv{n}d": convolution for n in (1, 2, 3)},
    **{f"relax.image.resize{n}d": resize for n in (2, 3)},
    **{f"relax.{name}": pooling for name in _POOLINGS.split()},
}
