"""Products of bytes in place of products of dequantised numbers.

With data ``(x - z) * s`` and weights ``w * t``, a sum of products is ``s * t`` times
``sum(x * w) - z * sum(w)``. The first sum is one of bytes, which has its own instruction, the
second a constant for each channel. Bytes with a sign are moved to unsigned ones, with their zero
point. Quantisation behind a product scales its integers once, as ONNX Runtime does.

Products that the instruction does not fit, such as depthwise convolutions, multiply whole numbers
``x - z`` and ``w`` in float32, which is exact as long as no sum passes 24 bits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.passes.products.product_sums import (
    INT32_RANGE,
    LARGEST,
    Sums,
    SumsVisitor,
)
from tuner.engines.relax.graph.passes.products.quantised_operands import (
    BYTES,
    HALF,
    QuantisedData,
    are_bytes,
)
from tuner.engines.relax.graph.passes.visitor import Array, const, dtype_of, name_of
from tuner.engines.relax.ir.tensor_types import shape_of

_Rule = Callable[[relax.Call], relax.Expr | None]

_MATRIX = 2
# Products of fewer terms or columns fill too little of an instruction.
_MIN_TERMS, _MIN_COLUMNS = 16, 8
# More products of bytes than this could pass the range of int32.
_MAX_TERMS = INT32_RANGE // (LARGEST * HALF)
# Whole numbers up to here have a float32 each.
_MAX_EXACT = 2**24
# Operators that only move or choose numbers, and so commute with quantisation.
_CHOICES = ("nn.max_pool2d", "reshape", "permute_dims", "squeeze", "expand_dims", "strided_slice")


@dataclass(frozen=True)
class _Columns:
    """Weights of each channel of a product.

    Attributes:
        codes: Whole numbers, shape (terms, channels).
        scale: Scale of each channel, or of all.
        axis: Axis of the channels in the result.
    """

    codes: Array
    scale: Array
    axis: int

    @property
    def totals(self) -> Array:
        """Sum of the weights of each channel."""
        return np.asarray(self.codes.sum(0, dtype=np.int64))

    @property
    def bound(self) -> Array:
        """Largest magnitude of the sum of each channel."""
        return np.asarray(LARGEST * np.abs(self.codes).sum(0, dtype=np.int64))

    @property
    def is_exact(self) -> bool:
        """True if float32 holds every sum."""
        return bool(self.bound.max(initial=0) <= _MAX_EXACT)

    def shape(self, rank: int) -> list[int]:
        """Return the shape that broadcasts a number for each channel to a result."""
        return [-1 if axis == self.axis else 1 for axis in range(rank)]


@mutator
class IntegerProductFinder(SumsVisitor):
    """Mutator that follows quantised data through the calls of a function.

    For GPUs, convolutions of images whose zero point is 0 pad them themselves.
    """

    def __init__(self, module: tvm.IRModule, *, is_for_gpu: bool = False) -> None:
        super().__init__(module)
        self._is_for_gpu = is_for_gpu
        self._rules: dict[str, _Rule] = {
            "nn.conv2d": self._convolve,
            "matmul": self._multiply,
            "mean": self._average,
            "nn.adaptive_avg_pool2d": self._average,
            "multiply": self.scale_sums,
            "add": self.add_bias,
            "reshape": self._reshape,
            "nn.relu": lambda call: self.limit(call, 0.0, np.inf),
            "clip": lambda call: self.limit(call, *_limits(call)),
            "astype": self.cast,
            "quantize": self._quantise,
            "dequantize": self._dequantise,
        }

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Rewrite one call; calls of other numbers stay."""
        rule = self._rules.get(name_of(call))
        replaced = rule(call) if rule else None
        return call if replaced is None else replaced

    def _convolve(self, call: relax.Call) -> relax.Expr | None:
        attrs = call.attrs
        layouts = [str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)]
        if layouts != ["NCHW", "OIHW", "NCHW"]:
            return None
        data, weight = self.quantised(call.args[0]), self.weight(call.args[1], 0)
        if data is None or weight is None:
            return None
        codes, scale = weight
        columns = _Columns(codes.reshape(len(codes), -1).T, scale, 1)
        groups = int(attrs.groups)
        # Sums of groups are whole numbers in float32.
        fits = are_bytes(codes) and columns.is_exact if groups > 1 else _is_worth(columns.codes)
        if not fits:
            return self._multiply_floats(call, data, codes, columns)
        top, left, bottom, right = (int(size) for size in attrs.padding)
        is_plain = self._is_for_gpu and isinstance(data.zero, int) and data.zero == 0
        padding = attrs.padding if is_plain else 0
        widths = (0,) * 4 + ((0,) * 4 if is_plain else (top, bottom, left, right))
        padded = self._pad(data, widths)
        window = (attrs.strides, padding, attrs.dilation, groups)
        sums = relax.op.nn.conv2d(padded, const(codes, "int8"), *window, out_dtype="int32")
        return self._numbers(sums, data, columns)

    def _multiply(self, call: relax.Call) -> relax.Expr | None:
        data, weight = self.quantised(call.args[0]), self.weight(call.args[1], 1)
        if data is None or len(shape_of(call)) < _MATRIX:
            return None
        if weight is None:
            return self._multiply_data(call)
        codes, scale = weight
        if codes.ndim != _MATRIX:
            return None
        columns = _Columns(codes, scale, len(shape_of(call)) - 1)
        if not _is_worth(codes):
            return self._multiply_floats(call, data, codes, columns)
        sums = relax.op.matmul(data.codes, const(codes, "int8"), out_dtype="int32")
        return self._numbers(sums, data, columns)

    def _multiply_floats(
        self, call: relax.Call, data: QuantisedData, codes: Array, columns: _Columns
    ) -> relax.Expr | None:
        """Multiply whole numbers in float32 if their sums are exact there."""
        if not columns.is_exact:
            return None
        bound = columns.bound
        args = [self.centred(data), const(codes, "float32")]
        sums = self._whole(relax.Call(call.op, args, call.attrs, call.ty_args))
        return self._finish(sums, data, columns, (np.zeros_like(bound), bound))

    def _whole(self, sums: relax.Expr) -> relax.Var:
        """Return float32 sums as integers, so that no scale is multiplied into their weights."""
        return self.emit(relax.op.astype(self.emit(sums), "int32"))

    def _multiply_data(self, call: relax.Call) -> relax.Expr | None:
        """Multiply two quantised tensors, as attention does."""
        left, right = (self.fixed(each) for each in call.args)
        if left is None or right is None:
            return None
        bound = LARGEST**2 * shape_of(call.args[0])[-1]
        args = [self.centred(left), self.centred(right)]
        product = relax.Call(call.op, args, call.attrs, call.ty_args)
        scale = np.float32(left.scale) * np.float32(right.scale)
        return self._note_all(call, product, bound, scale)

    def _average(self, call: relax.Call) -> relax.Expr | None:
        """Sum whole numbers in place of an average of the numbers that they stand for."""
        data, rank = self.fixed(call.args[0]), len(shape_of(call.args[0]))
        if data is None:
            return None
        axes, keeps = [2, 3], True
        if name_of(call) == "mean":
            axes = [*map(int, call.attrs.axis or range(rank))]
            keeps = bool(call.attrs.keepdims)
        elif str(call.attrs.layout) != "NCHW" or shape_of(call)[2:] != (1, 1):
            return None
        count = math.prod(shape_of(call.args[0])[axis] for axis in axes)
        total = relax.op.sum(self.centred(data), axes, keeps)
        scale = np.float32(data.scale) / np.float32(count)
        return self._note_all(call, total, LARGEST * count, scale)

    def _note_all(
        self, call: relax.Call, sums: relax.Expr, bound: int, scale: np.float32
    ) -> relax.Expr | None:
        """Note sums with one scale in place of a call, if float32 holds them."""
        if bound > _MAX_EXACT:
            return None
        shape = [1] * len(shape_of(call))
        zeros = np.zeros(shape, np.int64)
        factor, bias = np.full(shape, scale, np.float32), np.zeros(shape, np.float64)
        return self.note(Sums(self._whole(sums), np.full(shape, bound), zeros, factor, bias))

    def _pad(self, data: QuantisedData, widths: tuple[int, ...]) -> relax.Expr:
        """Pad images by the zero point."""
        if not any(widths):
            return data.codes
        if isinstance(data.zero, int):
            return self.emit(relax.op.nn.pad(data.codes, widths, "constant", data.zero))
        padded = self.emit(relax.op.nn.pad(data.codes, widths, "constant", 0))
        *_, height, width = shape_of(padded)
        is_inside = np.zeros((1, 1, height, width), np.bool_)
        is_inside[..., widths[4] : height - widths[5], widths[6] : width - widths[7]] = True
        return self.emit(relax.op.where(const(is_inside, "bool"), padded, data.zero))

    def _numbers(self, call: relax.Call, data: QuantisedData, columns: _Columns) -> relax.Expr:
        """Return the float32 numbers for sums of products of bytes."""
        sums = self.emit(call)
        totals, bound = columns.totals, columns.bound
        if isinstance(data.zero, int):
            return self._finish(sums, data, columns, (-data.zero * totals, bound))
        shape = columns.shape(len(shape_of(sums)))
        zero = self.emit(relax.op.astype(data.zero, "int32"))
        shift = self.emit(relax.op.multiply(zero, const(totals.reshape(shape), "int32")))
        sums = self.emit(relax.op.subtract(sums, shift))
        return self._finish(sums, data, columns, (np.zeros_like(totals), 2 * bound))

    def _finish(
        self,
        sums: relax.Var,
        data: QuantisedData,
        columns: _Columns,
        offset_and_bound: tuple[Array, Array],
    ) -> relax.Expr:
        """Return the float32 numbers for int32 sums, and note how they follow."""
        shape = columns.shape(len(shape_of(sums)))
        offset, bound = (each.reshape(shape) for each in offset_and_bound)
        factor = np.broadcast_to(columns.scale, offset.size).reshape(shape).astype(np.float32)
        if not isinstance(data.scale, relax.Expr):
            factor = factor * np.float32(data.scale)
        noted = Sums(sums, bound, offset, factor, np.zeros_like(offset, np.float64))
        if isinstance(data.scale, relax.Expr):
            return relax.op.multiply(self.materialise(noted), data.scale)
        return self.note(noted)

    def _reshape(self, call: relax.Call) -> relax.Expr | None:
        """Fold the reshape of a bias that is quantised itself."""
        if self.producer(call.args[0], "relax.dequantize") is None:
            return None
        value = self.known(call.args[0])
        return None if value is None else const(value.reshape(shape_of(call)), "float32")

    def _quantise(self, call: relax.Call) -> relax.Expr | None:
        """Quantise as unsigned bytes."""
        scale, zero = self.scalar(call.args[1]), self.scalar(call.args[2])
        dtype = dtype_of(call)
        if scale is None or zero is None or dtype not in BYTES:
            return None
        zero = int(zero) + (HALF if dtype == "int8" else 0)
        codes = self._chosen(call.args[0], scale, zero)
        if codes is None:
            codes = self.requantised(call.args[0], scale, zero)
        if codes is None:
            codes = self.combined(call.args[0], scale, zero, is_signed=dtype == "int8")
        if dtype == "uint8":
            return codes
        if codes is None:
            codes = relax.op.quantize(
                call.args[0], call.args[1], relax.const(zero, "uint8"), call.attrs.axis, "uint8"
            )
        unsigned = self.emit(codes)
        wide = self.emit(relax.op.astype(unsigned, "int16"))
        moved = self.emit(relax.op.subtract(wide, relax.const(HALF, "int16")))
        signed = self.emit(relax.op.astype(moved, "int8"))
        self.unsigned[signed] = unsigned
        return signed

    def _chosen(self, expr: relax.Expr, scale: float, zero: int) -> relax.Expr | None:
        """Return the codes of numbers that were chosen among numbers with the same codes."""
        call = self.producer(expr, *(f"relax.{name}" for name in _CHOICES))
        data = None if call is None else self.fixed(call.args[0])
        if call is None or data is None or (data.scale, data.zero) != (np.float32(scale), zero):
            return None
        return relax.Call(call.op, [data.codes, *call.args[1:]], call.attrs, call.ty_args)

    def _dequantise(self, call: relax.Call) -> relax.Expr | None:
        """Dequantise from the unsigned codes."""
        unsigned = self.unsigned.get(self.source(call.args[0]))
        zero = self.scalar(call.args[2])
        if unsigned is None or zero is None:
            return None
        moved = relax.const(int(zero) + HALF, "uint8")
        attrs = call.attrs
        return relax.op.dequantize(unsigned, call.args[1], moved, attrs.axis, str(attrs.out_dtype))


def _is_worth(columns: Array) -> bool:
    """Return whether weights (terms, channels) are bytes that fill an instruction."""
    n_terms, n_columns = columns.shape
    is_large = n_columns >= _MIN_COLUMNS and _MIN_TERMS <= n_terms <= _MAX_TERMS
    return is_large and are_bytes(columns)


def _limits(call: relax.Call) -> tuple[float, float]:
    return tuple(float(limit.value) for limit in call.args[1:])  # type: ignore[return-value]
