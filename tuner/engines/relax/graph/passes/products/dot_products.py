"""Products of 8-bit integers on packed weights, for CPUs that add several such products at once.

Weights lie as the instruction reads them. Where it multiplies 16-bit integers, weights are widened
when a library is built, and data where they are padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.codegen.cpu.dot_instructions import DotInstruction
from tuner.engines.relax.graph.passes.products.product_sums import LARGEST
from tuner.engines.relax.graph.passes.visitor import Array, CallVisitor, const, dtype_of, name_of
from tuner.engines.relax.ir.packed_layouts import PACKS

#: Annotation of sums that stay below ``FEW_BITS`` in magnitude, by their weights, for any data.
HAS_FEW_BITS, FEW_BITS = "tuner.has_few_bits", 2**25

# TVM's pattern of kernels that elementwise tails are fused into.
_FUSABLE = 4
_MATRIX = 2


def is_integer_product(call: relax.Call) -> bool:
    """Return whether a call multiplies unsigned by signed bytes."""
    return (
        name_of(call) in ("nn.conv2d", "matmul")
        and [dtype_of(arg) for arg in call.args] == ["uint8", "int8"]
        and dtype_of(call) == "int32"
    )


def pack_integer_products(module: tvm.IRModule, instruction: DotInstruction | None) -> tvm.IRModule:
    """Replace products of bytes with constant weights by kernels on packed weights."""
    return module if instruction is None else _Packer(module, instruction).run(module)


@dataclass(frozen=True)
class _Window:
    """The places of the data that a convolution reads.

    Attributes:
        strides: Steps from one output to the next, down and across.
        dilation: Steps from one weight to the next.
        padding: Padding at the top, the left, the bottom and the right.
        fill: Value of the padding.
    """

    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]
    fill: int

    def positions(self, data: te.Tensor, weight: te.Tensor) -> tuple[int, int, int]:
        """Return the batch, the height and the width of a result."""
        batch, *sizes = map(int, data.shape[:3])
        top, left, bottom, right = self.padding
        height, width = (
            (size + pads - step * (int(extent) - 1) - 1) // stride + 1
            for size, pads, extent, stride, step in zip(
                sizes,
                (top + bottom, left + right),
                weight.shape[1:3],
                self.strides,
                self.dilation,
                strict=True,
            )
        )
        return batch, height, width

    def padded(self, data: te.Tensor, n_terms: int, dtype: str) -> te.Tensor:
        """Pad data, whose last axis gets a length, and widen them."""
        top, left, *after = self.padding
        return padded(data, [0, top, left], n_terms, self.fill, (0, *after), dtype)

    def place(self, y: Any, x: Any, i: Any, j: Any) -> tuple[Any, Any]:
        """Return the row and the column of the data that a weight of a window meets."""
        (down, across), (dilated_down, dilated_across) = self.strides, self.dilation
        return y * down + i * dilated_down, x * across + j * dilated_across


@mutator
class _Packer(CallVisitor):
    """Mutator that packs the weights of one product after the other."""

    def __init__(self, module: tvm.IRModule, instruction: DotInstruction) -> None:
        super().__init__(module)
        self._instruction = instruction

    def rewrite(self, original: relax.Call, call: relax.Call) -> relax.Expr:
        """Pack the weights of a product; other calls stay."""
        if not is_integer_product(call):
            return call
        weight = self.constant(call.args[1])
        if weight is None:
            return call
        if name_of(call) == "matmul":
            is_matrix = weight.ndim == _MATRIX
            return (
                self._call(multiply, "dot_product", call.args[0], weight.T) if is_matrix else call
            )
        layouts = (str(call.attrs.data_layout), str(call.attrs.kernel_layout))
        return self._convolve(original, call, weight) if layouts == ("NHWC", "OHWI") else call

    def _convolve(self, original: relax.Call, call: relax.Call, weight: Array) -> relax.Expr:
        attrs = call.attrs
        data, padding, fill = call.args[0], [int(size) for size in attrs.padding], 0
        pad = self.producer(data, "relax.nn.pad")
        if pad is not None and not any(padding) and self.n_uses[original.args[0]] == 1:
            widths = [int(size) for size in pad.attrs.pad_width]
            is_spatial = not any(widths[:2]) and not any(widths[6:])
            if is_spatial and str(pad.attrs.pad_mode) == "constant":
                data, fill = pad.args[0], int(pad.attrs.pad_value)
                padding = [widths[2], widths[4], widths[3], widths[5]]
        strides, dilation = (tuple(map(int, each)) for each in (attrs.strides, attrs.dilation))
        window = _Window(strides, dilation, tuple(padding), fill)  # type: ignore[arg-type]
        groups = int(attrs.groups)
        if groups > 1:
            return self.builder_.call_te(
                lambda x, w: convolve_groups(x, w, groups, window),
                data,
                const(weight, "float32"),
                primfunc_name_hint="grouped_conv2d",
                primfunc_attrs={"op_pattern": _FUSABLE},
            )
        # Winograd's variant, which may fit, asks for the size of sums.
        is_dense = window.strides == window.dilation == (1, 1)
        may_transform = is_dense and not self._instruction.accumulates
        marks = {HAS_FEW_BITS: True} if may_transform and _has_few_bits(weight) else {}
        return self._call(
            lambda x, w, n, by: convolve(x, w, n, by, window, marks), "dot_conv2d", data, weight
        )

    def _call(self, define: Any, name: str, data: relax.Expr, weight: Array) -> relax.Expr:
        by = self._instruction
        return self.builder_.call_te(
            lambda x, w: define(x, w, len(weight), by),
            data,
            const(pack(weight, by), "int8"),
            primfunc_name_hint=name,
            primfunc_attrs={"op_pattern": _FUSABLE},
        )


def _has_few_bits(weight: Array) -> bool:
    """Return whether sums of weights (columns, ..., terms) times bytes stay below ``FEW_BITS``."""
    rows = weight.reshape(len(weight), -1).astype(np.int64)
    of_sign = (np.maximum(sign * rows, 0).sum(1).max() for sign in (1, -1))
    return LARGEST * int(max(of_sign)) < FEW_BITS


def pack(weight: Array, by: DotInstruction) -> Array:
    """Pack weights (columns, ..., terms) as (column blocks, ..., term blocks, lanes, terms)."""
    n_columns, *middle, n_terms = weight.shape
    padding = [(0, -n_columns % by.lanes), *((0, 0) for _ in middle), (0, -n_terms % by.terms)]
    filled = np.pad(weight, padding).astype("int8")
    blocks = filled.reshape(-1, by.lanes, *middle, filled.shape[-1] // by.terms, by.terms)
    return np.ascontiguousarray(np.moveaxis(blocks, 1, -2))


def widened(weight: te.Tensor, by: DotInstruction) -> te.Tensor:
    """Convert packed weights to the type that an instruction multiplies, once for a library."""
    if weight.dtype == by.weight:
        return weight
    return te.compute(
        weight.shape,
        lambda *at: weight[at].astype(by.weight),
        name="widened",
        attrs={PACKS: True},
    )


def multiply(data: te.Tensor, weight: te.Tensor, n_columns: int, by: DotInstruction) -> te.Tensor:
    """Define the product of rows (..., terms) with packed weights."""
    weight = widened(weight, by)
    data = padded(data, [0] * (len(data.shape) - 1), _n_terms(weight), 0, dtype=by.data)
    k = te.reduce_axis((0, _n_terms(weight)), name="k")
    product = te.compute(
        (*data.shape[:-1], int(weight.shape[0]) * by.lanes),
        lambda *at: te.sum(_product(data[(*at[:-1], k)], weight[place(at[-1], (), k, by)]), axis=k),
        name="dot_product",
    )
    return cropped(product, (*product.shape[:-1], n_columns))


def convolve(
    data: te.Tensor,
    weight: te.Tensor,
    n_columns: int,
    by: DotInstruction,
    window: _Window,
    marks: dict[str, Any],
) -> te.Tensor:
    """Define a convolution of channels-last images with packed weights, whose block has marks."""
    weight = widened(weight, by)
    _, n_down, n_across, *_ = map(int, weight.shape)
    i, j = te.reduce_axis((0, n_down), name="i"), te.reduce_axis((0, n_across), name="j")
    k = te.reduce_axis((0, _n_terms(weight)), name="k")
    shape = window.positions(data, weight)
    data = window.padded(data, _n_terms(weight), by.data)
    product = te.compute(
        (*shape, int(weight.shape[0]) * by.lanes),
        lambda b, y, x, o: te.sum(
            _product(data[(b, *window.place(y, x, i, j), k)], weight[place(o, (i, j), k, by)]),
            axis=[i, j, k],
        ),
        name="dot_conv2d",
        attrs=marks,
    )
    return cropped(product, (*product.shape[:-1], n_columns))


def convolve_groups(data: te.Tensor, weight: te.Tensor, groups: int, window: _Window) -> te.Tensor:
    """Define a convolution in groups as sums of whole numbers in float32.

    Args:
        data: Bytes, channels last.
        weight: Whole numbers as float32, shape (columns, down, across, terms).
        window: Places of the data that it reads.

    Returns:
        Sums as int32.
    """
    n_columns, n_down, n_across, n_terms = map(int, weight.shape)
    i, j = te.reduce_axis((0, n_down), name="i"), te.reduce_axis((0, n_across), name="j")
    k = te.reduce_axis((0, n_terms), name="k")
    shape = window.positions(data, weight)
    numbers = window.padded(data, int(data.shape[-1]), "float32")
    sums = te.compute(
        (*shape, n_columns),
        lambda b, y, x, o: te.sum(
            numbers[(b, *window.place(y, x, i, j), o // (n_columns // groups) * n_terms + k)]
            * weight[o, i, j, k],
            axis=[i, j, k],
        ),
        name="grouped_conv2d",
    )
    return te.compute(sums.shape, lambda *at: sums[at].astype("int32"), name="whole")


def cropped(product: te.Tensor, shape: Sequence[int]) -> te.Tensor:
    """Drop the rows and columns that only fill the last tile or vector."""
    if [*map(int, product.shape)] == [*map(int, shape)]:
        return product
    return te.compute(shape, product, name="cropped")


def _n_terms(weight: te.Tensor) -> int:
    return int(weight.shape[-3]) * int(weight.shape[-1])


def place(column: Any, middle: Sequence[Any], k: Any, by: DotInstruction) -> tuple[Any, ...]:
    """Return the place of a weight in the packed order."""
    block, lane = tirx.floordiv(column, by.lanes), tirx.floormod(column, by.lanes)
    return (block, *middle, tirx.floordiv(k, by.terms), lane, tirx.floormod(k, by.terms))


def _product(data: Any, weight: Any) -> Any:
    return data.astype("int32") * weight.astype("int32")


def padded(
    data: te.Tensor,
    before: Sequence[int],
    n_last: int,
    fill: int,
    after: Sequence[int] = (),
    dtype: str = "",
) -> te.Tensor:
    """Pad all axes but the last, and the last to a length, and widen; weights are zero there."""
    dtype = dtype or data.dtype
    after = after or [0] * len(before)
    *shape, last = map(int, data.shape)
    if not any(before) and not any(after) and last == n_last and dtype == data.dtype:
        return data

    def value(*at: Any) -> Any:
        moved = [axis - size if size else axis for axis, size in zip(at, before, strict=False)]
        inside = [
            limit
            for axis, size, extent, end in zip(moved, before, shape, after, strict=True)
            for limit in ([axis >= 0] if size else []) + ([axis < extent] if end else [])
        ]
        inside += [at[-1] < last] if last != n_last else []
        number = data[(*moved, at[-1])].astype(dtype)
        if not inside:
            return number
        return tirx.if_then_else(tirx.all(*inside), number, tirx.const(fill, dtype))

    extents = [size + b + a for size, b, a in zip(shape, before, after, strict=True)]
    return te.compute((*extents, n_last), value, name="padded")
