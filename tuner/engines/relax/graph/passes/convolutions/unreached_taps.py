"""Convolutions without the taps of their windows that read padding at every position.

In a window whose taps are as far apart as the input is long, such as one of 3 by 3 with a dilation
of 24 over 16 by 16 pixels, only the middle one ever reads a pixel: it is a convolution of 1 by 1.
"""

from dataclasses import dataclass

from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.layout.scope import with_attrs
from tuner.engines.relax.graph.passes.visitor import CallVisitor, const, dtype_of
from tuner.engines.relax.ir.tensor_types import shape_of

_LAYOUTS = {
    "nn.conv1d": ("NCW", "OIW"),
    "nn.conv2d": ("NCHW", "OIHW"),
    "nn.conv3d": ("NCDHW", "OIDHW"),
}


@dataclass(frozen=True)
class _Axis:
    """The windows of a convolution along one axis.

    Attributes:
        size: Length of the input.
        n_positions: Windows.
        stride: Distance of two windows.
        n_taps: Taps of a window.
        dilation: Distance of two taps.
        before: Padding in front of the input.
    """

    size: int
    n_positions: int
    stride: int
    n_taps: int
    dilation: int
    before: int

    @property
    def after(self) -> int:
        """Padding that the last window needs behind the input."""
        end = (self.n_positions - 1) * self.stride + (self.n_taps - 1) * self.dilation + 1
        return end - self.size - self.before

    def taps(self) -> range:
        """Return the taps that read the input in a window; all if the others cannot be cut."""
        last_start = (self.n_positions - 1) * self.stride
        reached = [
            tap
            for tap in range(self.n_taps)
            if -last_start <= tap * self.dilation - self.before < self.size
        ]
        taps = range(reached[0], reached[-1] + 1) if reached else range(self.n_taps)
        cut = self.cut(taps)
        return taps if min(cut.before, cut.after) >= 0 else range(self.n_taps)

    def cut(self, taps: range) -> "_Axis":
        """Return the windows with some of their taps."""
        before = self.before - taps.start * self.dilation
        return _Axis(self.size, self.n_positions, self.stride, len(taps), self.dilation, before)


@mutator
class TapCutter(CallVisitor):
    """Mutator that cuts the windows of channels-first convolutions to what they read."""

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Cut one window; all else stays."""
        weight = self.weight_of(call, _LAYOUTS)
        if weight is None:
            return call
        window = weight.shape[2:]
        attrs = call.attrs
        strides, dilations, pads = (
            [int(value) for value in values]
            for values in (attrs.strides, attrs.dilation, attrs.padding)
        )
        sizes, positions = shape_of(call.args[0])[2:], shape_of(call)[2:]
        axes = [
            _Axis(*numbers)
            for numbers in zip(
                sizes, positions, strides, window, dilations, pads[: len(window)], strict=True
            )
        ]
        taps = [axis.taps() for axis in axes]
        if all(len(each) == axis.n_taps for each, axis in zip(taps, axes, strict=True)):
            return call
        cut = [axis.cut(each) for axis, each in zip(axes, taps, strict=True)]
        kept = tuple(slice(each.start, each.stop) for each in taps)
        weight = weight[(slice(None), slice(None), *kept)]
        padding = [*(axis.before for axis in cut), *(axis.after for axis in cut)]
        args = [call.args[0], const(weight, dtype_of(call.args[1]))]
        return with_attrs(call, args, padding=padding)
