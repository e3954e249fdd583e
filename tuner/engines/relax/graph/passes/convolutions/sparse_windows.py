"""Dilated convolutions whose taps mostly read padding, as sums of products with parts of the input.

In a window of 3 by 3 with a dilation of 12 over 16 by 16 pixels, the middle tap reads a pixel at
every position, those at its sides at a quarter of them and those in the corners at a sixteenth: of
nine products for each position, 2.25 are not with zeros. A tap alone is a convolution of 1 by 1
over the rectangle that it reads, added where that rectangle moves to.
"""

import itertools
import math
from dataclasses import dataclass

from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.passes.visitor import Array, CallVisitor, const, dtype_of
from tuner.engines.relax.ir.tensor_types import shape_of

_LAYOUTS = {"nn.conv2d": ("NCHW", "OIHW")}
# Products in the time that a kernel takes to start, and in that of moving one number.
_START, _MOVE = 2**20, 32
# Largest share of products that read the input.
_MAX_SHARE = 0.6


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
    """Mutator that splits channels-first convolutions where that saves products."""

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Split one convolution; all else stays."""
        attrs = call.attrs
        weight = self.weight_of(call, _LAYOUTS)
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
