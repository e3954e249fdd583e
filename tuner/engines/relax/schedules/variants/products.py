"""Products of matrices and convolutions by constant weights, found in the blocks of a kernel."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from tvm import tirx
from tvm.ir import Call
from tvm.tirx import Buffer, BufferStore, PrimFunc, Var

from tuner.engines.relax.schedules.variants.convolutions import (
    DTYPE,
    INDEX,
    block_of,
    is_constant,
    only_match,
    position_of,
    statements_of,
)
from tuner.engines.relax.schedules.variants.nests import shape_of

_REDUCTION = 2

Pair = tuple[int, int]


class Window(NamedTuple):
    """Window of a convolution: rows, then columns; ``before`` is the padding at top and left."""

    size: Pair
    strides: Pair = (1, 1)
    dilation: Pair = (1, 1)
    before: Pair = (0, 0)


class Product(NamedTuple):
    """The product of a kernel: of matrices, or a convolution of one group, NHWC.

    Attributes:
        position: Number of its statement in the kernel.
        data: Input of the kernel that is multiplied, without padding.
        weight: Weights, a constant of the network.
        order: For each dimension of the weights, its role: position in ``reduced``, or their number
            for the output channels.
        reduced: Sizes that are summed over: rows and columns of the window, if any, and channels.
        output: Sums.
        window: Window; None without one.
        padding: Number of the statement that pads the data; None if it is not padded.
        padded: The padded data; None if it is not padded.
    """

    function: PrimFunc
    position: int
    data: Buffer
    weight: Buffer
    order: tuple[int, ...]
    reduced: tuple[int, ...]
    output: Buffer
    window: Window | None = None
    padding: int | None = None
    padded: Buffer | None = None

    @classmethod
    def find(cls, function: PrimFunc) -> Self | None:
        """Return the only product of a kernel, if there is one, of an input and of weights."""
        return only_match(function, cls._match)

    @property
    def shape(self) -> list[int]:
        """Shape of the output."""
        return shape_of(self.output)

    @property
    def is_matrix(self) -> bool:
        """True for a product of matrices, as a window of one element is one."""
        return self.window in (None, Window((1, 1))) and self.padding is None

    @property
    def n_divisible(self) -> int:
        """Number of leading output axes that can be split into separate library calls."""
        return len(self.shape) - 1 if self.is_matrix else 2

    @property
    def flop(self) -> float:
        """Floating-point operations."""
        return 2.0 * math.prod(self.shape) * math.prod(self.reduced)

    @property
    def weight_bytes(self) -> int:
        """Size of the weights."""
        return 4 * math.prod(shape_of(self.weight))

    @classmethod
    def _match(cls, function: PrimFunc, position: int, statement: Any) -> Self | None:
        block = block_of(statement)
        operands = _operands(block)
        if operands is None:
            return None
        data, weight = operands
        output, written = block.body.buffer, list(block.body.indices)
        dtypes = {str(each.dtype) for each in (data.source, weight.source, output)}
        indices = {str(axis.var.ty.dtype) for axis in block.iter_vars}
        reduced = [axis for axis in block.iter_vars if int(axis.iter_type) == _REDUCTION]
        summed = [axis.var for axis in reduced]
        sizes = tuple(int(axis.dom.extent) for axis in reduced)
        order = tuple(position_of(each, [*summed, written[-1]]) for each in weight.indices)
        ends = [*sizes, shape_of(output)[-1]]
        is_product = (
            dtypes == {DTYPE}
            and indices == {INDEX}
            and is_constant(function, weight.source)
            and sorted(order) == list(range(len(summed) + 1))
            and shape_of(weight.source) == [ends[role] for role in order]
            and math.prod(int(axis.dom.extent) for axis in block.iter_vars)
            == math.prod(shape_of(output)) * math.prod(sizes)
        )
        if not is_product:
            return None
        product = cls(function, position, data.source, weight.source, order, sizes, output)
        read = list(data.indices)
        if _same(read, [*written[:-1], *summed]):
            is_whole = shape_of(data.source) == [*shape_of(output)[:-1], *sizes]
            return product if is_whole and _is_input(function, data.source) else None
        return product._with_window(read, written, summed)

    def _with_window(
        self, read: Sequence[Any], written: Sequence[Any], summed: Sequence[Var]
    ) -> Self | None:
        """Return the convolution that reads at these indices; None if it has no window."""
        if len(read) != 4 or len(written) != 4 or len(summed) != 3:
            return None
        if not _same([read[0], read[3]], [written[0], summed[2]]):
            return None
        rows = _tap(read[1], written[1], summed[0])
        columns = _tap(read[2], written[2], summed[1])
        if rows is None or columns is None:
            return None
        size = self.reduced[0], self.reduced[1]
        window = Window(size, (rows[0], columns[0]), (rows[1], columns[1]))
        batch, height, width, channels = shape_of(self.data)
        inside = all(
            (extent - 1) * stride + (taps - 1) * dilation < end
            for extent, taps, stride, dilation, end in zip(
                self.shape[1:3], size, window.strides, window.dilation, (height, width), strict=True
            )
        )
        if not inside or (batch, channels) != (self.shape[0], self.reduced[2]):
            return None
        if _is_input(self.function, self.data):
            return self._replace(window=window)
        return self._without_padding(window)

    def _without_padding(self, window: Window) -> Self | None:
        """Return the convolution of the data before they were padded with zeros."""
        statements = statements_of(self.function)
        blocks = [block_of(statement) for statement in statements]
        writers = [n for n, block in enumerate(blocks) if _touches(block.writes, self.data)]
        readers = [n for n, block in enumerate(blocks) if _touches(block.reads, self.data)]
        if len(writers) != 1 or readers != [self.position]:
            return None
        padding = padding_of(blocks[writers[0]])
        if padding is None or not _is_input(self.function, padding[0]):
            return None
        data, before = padding
        return self._replace(
            data=data, window=window._replace(before=before), padding=writers[0], padded=self.data
        )


def padding_of(block: Any) -> tuple[Buffer, Pair] | None:
    """Return the data that a block pads with zeros, and the rows and columns before them."""
    store = block.body
    if not isinstance(store, BufferStore):
        return None
    value = store.value
    bounds: dict[int, Pair] | None = {}
    if isinstance(value, Call) and str(value.op.name).endswith("if_then_else"):
        condition, value, other = value.args
        bounds = _bounds(condition, list(store.indices))
        if float(getattr(other, "value", 1.0)) != 0.0:
            return None
    if bounds is None or not hasattr(value, "indices"):
        return None
    if len(value.indices) != len(store.indices):
        return None
    shifts = [_shift(*pair) for pair in zip(value.indices, store.indices, strict=True)]
    sizes = zip(shape_of(value.source), shape_of(store.buffer), strict=True)
    for axis, (shift, (inner, outer)) in enumerate(zip(shifts, sizes, strict=True)):
        # A condition that holds everywhere may be left out.
        if shift is None or bounds.get(axis, (0, outer)) != (shift, shift + inner):
            return None
    _, top, left, channel = (shift or 0 for shift in shifts)
    return (value.source, (top, left)) if channel == shifts[0] == 0 else None


def _bounds(condition: Any, indices: Sequence[Any]) -> dict[int, Pair] | None:
    """Return the range of each index in a conjunction of bounds; None if it is something else."""
    bounds: dict[int, Pair] = {}
    parts = [condition]
    while parts:
        part = parts.pop()
        if isinstance(part, tirx.And):
            parts += [part.a, part.b]
            continue
        is_lower = isinstance(part, tirx.LE) and isinstance(part.a, tirx.IntImm)
        is_upper = isinstance(part, tirx.LT) and isinstance(part.b, tirx.IntImm)
        axis = position_of(part.b if is_lower else getattr(part, "a", part), indices)
        if axis < 0 or not (is_lower or is_upper):
            return None
        low, high = bounds.get(axis, (0, 0))
        bounds[axis] = (int(part.a.value), high) if is_lower else (low, int(part.b.value))
    return bounds


def _touches(regions: Sequence[Any], buffer: Buffer) -> bool:
    return any(region.source.same_as(buffer) for region in regions)


def _operands(block: Any) -> tuple[Any, Any] | None:
    """Return the factors that a block adds to its sums; None if it does not."""
    store, start = getattr(block, "body", None), getattr(block, "init", None)
    value = getattr(store, "value", None)
    if not isinstance(store, BufferStore) or not isinstance(value, tirx.Add):
        return None
    is_sum = (
        isinstance(value.b, tirx.Mul)
        and hasattr(value.a, "indices")
        and value.a.source.same_as(store.buffer)
        and _same(list(value.a.indices), list(store.indices))
        and float(getattr(getattr(start, "value", None), "value", 1.0)) == 0.0
    )
    if not is_sum or not all(hasattr(each, "indices") for each in (value.b.a, value.b.b)):
        return None
    return value.b.a, value.b.b


def _same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(
        a.same_as(b) for a, b in zip(first, second, strict=True)
    )


def _is_input(function: PrimFunc, buffer: Buffer) -> bool:
    return any(parameter.same_as(buffer) for parameter in function.params)


def _tap(index: Any, outer: Any, tap: Any) -> Pair | None:
    """Return the factors of ``outer * stride + tap * dilation``, in any order."""
    if not isinstance(index, tirx.Add):
        return None
    for first, second in ((index.a, index.b), (index.b, index.a)):
        stride, dilation = _factor(first, outer), _factor(second, tap)
        if stride is not None and dilation is not None:
            return stride, dilation
    return None


def _factor(value: Any, variable: Any) -> int | None:
    if value.same_as(variable):
        return 1
    if isinstance(value, tirx.Mul) and value.a.same_as(variable):
        return int(value.b.value) if isinstance(value.b, tirx.IntImm) else None
    return None


def _shift(read: Any, written: Any) -> int | None:
    """Return by how much an index that is written exceeds the one that is read."""
    if read.same_as(written):
        return 0
    if isinstance(read, tirx.Sub) and read.a.same_as(written):
        return int(read.b.value) if isinstance(read.b, tirx.IntImm) else None
    return None
