"""Convolutions whose windows are flat, or whose taps mostly or always read padding."""

import itertools
import math
from dataclasses import dataclass

from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.layout.scope import with_attrs
from tuner.engines.relax.graph.passes.visitor import Array, CallVisitor, const, dtype_of, name_of
from tuner.engines.relax.ir.tensor_types import shape_of

_LAYOUTS = {
    "nn.conv1d": ("NCW", "OIW"),
    "nn.conv2d": ("NCHW", "OIHW"),
    "nn.conv3d": ("NCDHW", "OIDHW"),
}
# The axes with depth next to the batch, and back.
_BY_IMAGE = [0, 2, 1, 3, 4]
# Products in the time that a kernel takes to start, and in that of moving one number.
_START, _MOVE = 2**20, 32
# Largest share of products that read the input.
_MAX_SHARE = 0.6


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
    """Mutator that cuts the windows of channels-first convolutions to what they read.

    In a window whose taps are as far apart as the input is long, such as one of 3 by 3 with a
    dilation of 24 over 16 by 16 pixels, only the middle one ever reads a pixel.
    """

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


@mutator
class WindowFlattener(CallVisitor):
    """Mutator of channels-first convolutions of videos with windows of one image.

    Where a window is (1, k, k), depth joins the batch. Channels last, that moves no number, and
    convolutions over two axes have variants.
    """

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Replace one convolution; all else stays."""
        attrs = call.attrs
        weight = self.weight_of(call, _LAYOUTS) if name_of(call) == "nn.conv3d" else None
        if weight is None:
            return call
        padding = [int(n) for n in attrs.padding]
        depth = weight.shape[2], int(attrs.strides[0]), padding[0], padding[3]
        if depth != (1, 1, 0, 0):
            return call
        batch, channels, n_images, *size = shape_of(call.args[0])
        images = self.emit(relax.op.permute_dims(call.args[0], _BY_IMAGE))
        images = self.emit(relax.op.reshape(images, (batch * n_images, channels, *size)))
        convolved = relax.op.nn.conv2d(
            images,
            const(weight[:, :, 0], dtype_of(call.args[1])),
            strides=[int(n) for n in attrs.strides[1:]],
            padding=[*padding[1:3], *padding[4:]],
            dilation=[int(n) for n in attrs.dilation[1:]],
            groups=int(attrs.groups),
            out_dtype=attrs.out_dtype,
        )
        result = self.emit(convolved)
        video = self.emit(relax.op.reshape(result, (batch, n_images, *shape_of(result)[1:])))
        return relax.op.permute_dims(video, _BY_IMAGE)


@dataclass(frozen=True)
class _Tap:
    """A tap along one axis.

    Attributes:
        number: Its place in the window.
        shift: Position of what it reads in the first window.
        begin: First window in which it reads the input.
        end: End of these windows.
    """

    number: int
    shift: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Windows in which it reads the input."""
        return self.end - self.begin


@mutator
class SparseWindowSplitter(CallVisitor):
    """Mutator that splits dilated channels-first convolutions into sums of products.

    In a window of 3 by 3 with a dilation of 12 over 16 by 16 pixels, the middle tap reads a pixel
    at every position, those at its sides at a quarter of them and those in the corners at a
    sixteenth: of nine products for each position, 2.25 are not with zeros. A tap alone is a
    convolution of 1 by 1 over the rectangle that it reads, added where that rectangle moves to.
    """

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Split one convolution; all else stays."""
        attrs = call.attrs
        weight = self.weight_of(call, _LAYOUTS) if name_of(call) == "nn.conv2d" else None
        if weight is None:
            return call
        if {int(n) for n in (*attrs.strides, attrs.groups)} != {1} or max(attrs.dilation) == 1:
            return call
        taps = list(itertools.product(_taps(call, 0), _taps(call, 1)))
        if not _is_worthwhile(call, taps):
            return call
        # The product of the largest rectangle is added last.
        total = None
        for tap in sorted(taps, key=lambda each: each[0].size * each[1].size):
            term = self._term(call, weight, tap)
            total = term if total is None else self.emit(relax.op.add(total, term))
        return total

    def _term(self, call: relax.Call, weight: Array, tap: tuple[_Tap, _Tap]) -> relax.Var:
        """Emit what one tap adds to the result."""
        data, sizes = call.args[0], shape_of(call)[2:]
        begins = [each.begin + each.shift for each in tap]
        ends = [each.end + each.shift for each in tap]
        if [*begins, *ends] != [0, 0, *shape_of(data)[2:]]:
            data = self.emit(relax.op.strided_slice(data, [2, 3], begins, ends))
        row, column = (each.number for each in tap)
        own = const(weight[:, :, row : row + 1, column : column + 1], dtype_of(call.args[1]))
        product = self.emit(relax.op.nn.conv2d(data, own, out_dtype=call.attrs.out_dtype))
        edges = [(each.begin, size - each.end) for each, size in zip(tap, sizes, strict=True)]
        if not any(map(any, edges)):
            return product
        return self.emit(relax.op.nn.pad(product, [0, 0, 0, 0, *itertools.chain(*edges)]))


def _taps(call: relax.Call, axis: int) -> list[_Tap]:
    """Return the taps along rows or columns that read the input in a window."""
    data, window, result = (shape_of(each)[2 + axis] for each in (*call.args, call))
    dilation, padding = int(call.attrs.dilation[axis]), int(call.attrs.padding[axis])
    shifts = [number * dilation - padding for number in range(window)]
    taps = [
        _Tap(number, shift, max(-shift, 0), min(data - shift, result))
        for number, shift in enumerate(shifts)
    ]
    return [tap for tap in taps if tap.size > 0]


def _is_worthwhile(call: relax.Call, taps: list[tuple[_Tap, _Tap]]) -> bool:
    """Return whether the products with padding take longer than more kernels."""
    batch, c_out, *positions = shape_of(call)
    c_in = shape_of(call.args[0])[1]
    read = [row.size * column.size for row, column in taps]
    every = math.prod(shape_of(call.args[1])[2:]) * math.prod(positions)
    if not read or sum(read) > _MAX_SHARE * every:
        return False
    saved = batch * (every - sum(read)) * c_in * c_out
    moved = batch * sum(read) * (c_in + 2 * c_out)
    # A slice, a product and its share of the sum.
    return saved > 2 * len(read) * _START + moved * _MOVE
