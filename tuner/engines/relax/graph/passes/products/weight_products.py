"""Products of floats with quantised weights, which stay packed in a library.

A product of few rows takes as long as its weights take to be read, so that weights of 4 bits are
eight times as fast as floats. The kernel unpacks them in registers. On CPUs, the numbers of 16
columns lie side by side, of 4 bits those of two neighbouring terms in a byte. On GPUs, the terms of
a column do: threads load 16 bytes at once, of 4 bits those of 32 terms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.passes.products.dot_products import cropped, padded
from tuner.engines.relax.graph.passes.visitor import Array, CallVisitor, const, dtype_of, name_of
from tuner.engines.relax.ir.tensor_types import shape_of

#: Columns whose numbers lie side by side, and instructions that unpack a vector of them.
LANES, UNPACKING = 16, 4
# Rows that may be multiplied with the same vector of weights.
_MAX_ROWS = 16
# TVM's pattern of kernels that elementwise tails are fused into.
_FUSABLE = 4
_MATRIX = 2
# Bits of a byte, and numbers of 4 bits of each sign.
_BYTE, _HALF = 8, 8
# Terms whose numbers are the lower halves of bytes on GPUs; those of the upper halves follow.
_LOWER = 16
_GPU_FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class _Weight:
    """A quantised matrix.

    Attributes:
        codes: Its numbers, from 0, shape (columns, terms).
        scales: Scale of each block of terms, shape (columns, blocks).
        zeros: Zero point of each block, shape (columns, blocks).
        bits: Bits of each number, 4 or 8.
    """

    codes: Array
    scales: Array
    zeros: Array
    bits: int


def pack_weights(module: tvm.IRModule, *, is_for_gpu: bool = False) -> tvm.IRModule:
    """Replace products of floats with dequantised constants by kernels on packed weights.

    Args:
        module: Module with operators of Relax.
        is_for_gpu: True for kernels for tensor cores, whose data may be of half precision.
    """
    return _Packer(module, is_for_gpu=is_for_gpu).run(module)


@mutator
class _Packer(CallVisitor):
    """Mutator that packs the weights of one product after the other."""

    def __init__(self, module: tvm.IRModule, *, is_for_gpu: bool) -> None:
        super().__init__(module)
        self._is_for_gpu = is_for_gpu

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Pack the weights of a product; other calls stay."""
        dtypes = _GPU_FLOATS if self._is_for_gpu else ("float32",)
        if name_of(call) != "matmul" or dtype_of(call) not in dtypes:
            return call
        data = call.args[0]
        if len(shape_of(data)) < _MATRIX or dtype_of(data) != dtype_of(call):
            return call
        # Data that are quantised too are multiplied as floats on CPUs.
        if not self._is_for_gpu and self.producer(data, "relax.dequantize") is not None:
            return call
        weight = self._weight(call.args[1])
        return call if weight is None else self._call(data, weight)

    def _call(self, data: relax.Expr, weight: _Weight) -> relax.Expr:
        zero, dtype, bits = weight.zeros.reshape(-1)[0], dtype_of(data), weight.bits
        if self._is_for_gpu:
            # A byte holds two numbers of 32 terms.
            bits = bits if weight.codes.shape[1] % (2 * _LOWER) == 0 else _BYTE
            packed = _pack_columns(weight.codes, bits)
            order: Callable[[Array], Array] = np.asarray
        else:
            packed, order = _pack(weight.codes, bits), _by_lanes
        is_symmetric = bool((weight.zeros == zero).all())
        is_narrow = (weight.scales.astype(dtype) == weight.scales).all()
        scales = const(order(weight.scales), dtype if is_narrow else "float32")
        constants = [const(packed, "uint8"), scales]
        if not is_symmetric:
            constants.append(const(order(weight.zeros), "uint8"))

        def define(data: te.Tensor, *constants: te.Tensor) -> te.Tensor:
            fixed = float(zero) if is_symmetric else None
            if self._is_for_gpu:
                return _multiply_columns(data, constants, bits, fixed)
            return multiply(data, constants, len(weight.codes), bits, fixed)

        product = self.builder_.call_te(
            define,
            data,
            *constants,
            primfunc_name_hint="weight_product",
            primfunc_attrs={"op_pattern": _FUSABLE},
        )
        return product if dtype == "float32" else relax.op.astype(self.emit(product), dtype)

    def _converted(self, expr: relax.Expr, name: str) -> relax.Call | None:
        """Return the call of an operator that computes a value, before its conversion if any."""
        cast = self.producer(expr, "relax.astype")
        return self.producer(expr if cast is None else cast.args[0], name)

    def _weight(self, expr: relax.Expr) -> _Weight | None:
        """Return a matrix (terms, columns) that is dequantised from constants."""
        transpose = self._converted(expr, "relax.permute_dims")
        value = expr if transpose is None else transpose.args[0]
        reshape = self._converted(value, "relax.reshape")
        dequantised = value if reshape is None else reshape.args[0]
        call = self._converted(dequantised, "relax.dequantize")
        if call is None or len(shape_of(value)) != _MATRIX:
            return None
        codes, scale, zero = map(self.constant, call.args)
        if codes is None or scale is None or zero is None or codes.dtype.itemsize != 1:
            return None
        if codes.ndim != _MATRIX:
            return None
        axis = int(call.attrs.axis) % _MATRIX
        is_by_column = max(scale.size, zero.size) == 1 or axis == (transpose is None)
        if reshape is None and is_by_column:
            matrix = codes if transpose is not None else codes.T
        elif reshape is not None and transpose is not None and axis == 0:
            # Each row is a block of terms.
            matrix = codes.reshape(shape_of(value))
            if matrix.shape[1] % codes.shape[1]:
                return None
        else:
            return None
        block = matrix.shape[1] if reshape is None else codes.shape[1]
        shape = (len(matrix), matrix.shape[1] // block)
        scales, zeros = (
            np.broadcast_to(each.reshape(-1), math.prod(shape)).reshape(shape)
            for each in (scale.astype(np.float32), zero.astype(np.int16))
        )
        return _narrowed(matrix.astype(np.int16), scales, zeros, block)


def _narrowed(codes: Array, scales: Array, zeros: Array, block: int) -> _Weight | None:
    """Return a matrix (columns, terms) in as few bits as its numbers need."""
    low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
    is_narrow = (low >= -_HALF and high < _HALF) or (low >= 0 and high < 2 * _HALF)
    bits = _BYTE // 2 if is_narrow and block % 2 == 0 else _BYTE
    shift = 0 if low >= 0 else 1 << bits - 1
    moved = zeros + shift
    if moved.min(initial=0) < 0 or moved.max(initial=0) >= 1 << _BYTE:
        return None
    return _Weight(codes + shift, scales, moved, bits)


def _pack(codes: Array, bits: int) -> Array:
    """Pack numbers (columns, terms) as bytes (blocks of columns, bytes of a column, 16)."""
    numbers = _by_lanes(codes).astype(np.uint8)
    if bits == _BYTE:
        return numbers
    return np.asarray(numbers[:, ::2] | numbers[:, 1::2] << bits)


def _pack_columns(codes: Array, bits: int) -> Array:
    """Pack numbers (columns, terms) as bytes (columns, bytes of a column) for GPUs."""
    numbers = codes.astype(np.uint8)
    if bits == _BYTE:
        return numbers
    halves = numbers.reshape(len(codes), -1, 2, _LOWER)
    return np.asarray(halves[:, :, 0] | halves[:, :, 1] << bits).reshape(len(codes), -1)


def _by_lanes(matrix: Array) -> Array:
    """Return a matrix (columns, n) as (blocks of columns, n, 16)."""
    filled = np.pad(matrix, [(0, -len(matrix) % LANES), (0, 0)])
    return np.moveaxis(filled.reshape(-1, LANES, matrix.shape[1]), 1, 2)


def multiply(
    data: te.Tensor, constants: Sequence[te.Tensor], n_columns: int, bits: int, zero: float | None
) -> te.Tensor:
    """Define the product of rows (..., terms) with packed weights.

    Args:
        constants: Weights and scales; also the zero points where they differ.
        bits: Bits of each weight.
        zero: Zero point of all weights.
    """
    weight, scales, *zeros = constants
    n_blocks, n_column_blocks = int(scales.shape[1]), int(weight.shape[0])
    n_bytes, per_byte = int(weight.shape[1]) // n_blocks, _BYTE // bits
    *batch, n_rows, _ = map(int, data.shape)
    before, after = [0] * (len(batch) + 1), [*(0 for _ in batch), _n_rows(n_rows) - n_rows]
    data = padded(data, before, int(weight.shape[1]) * per_byte, 0, after)
    b = te.reduce_axis((0, n_blocks), name="b")
    k = te.reduce_axis((0, n_bytes), name="k")
    j = te.reduce_axis((0, per_byte), name="j")

    def product(*at: Any) -> Any:
        block, lane = tirx.floordiv(at[-1], LANES), tirx.floormod(at[-1], LANES)
        byte = weight[block, b * n_bytes + k, lane].astype("int32")
        code = byte if bits == _BYTE else (byte >> (j * bits)) & ((1 << bits) - 1)
        scale = scales[block, b, lane]
        origin = zeros[0][block, b, lane].astype("float32") if zeros else zero
        # The zero point times the scale is the same for all terms of a block.
        number = code.astype("float32") * scale - origin * scale
        term = data[(*at[:-1], (b * n_bytes + k) * per_byte + j)]
        return te.sum(term * number, axis=[b, k, j])

    shape = (*data.shape[:-1], n_column_blocks * LANES)
    wide = te.compute(shape, product, name="weight_product")
    return cropped(wide, (*batch, n_rows, n_columns))


def _multiply_columns(
    data: te.Tensor, constants: Sequence[te.Tensor], bits: int, zero: float | None
) -> te.Tensor:
    """Define the product of rows with packed weights for GPUs, summed in float32.

    Args:
        data: The rows (..., terms); weights are rounded to their type, as those of the network are.
        constants: See :func:`multiply`.
        bits: Bits of each weight.
        zero: Zero point of all weights.
    """
    weight, scales, *zeros = constants
    n_terms, dtype = int(data.shape[-1]), str(data.dtype)
    block = n_terms // int(scales.shape[1])
    k = te.reduce_axis((0, n_terms), name="k")

    def product(*at: Any) -> Any:
        if bits == _BYTE:
            code = weight[at[-1], k]
        else:
            byte = weight[at[-1], k // (2 * _LOWER) * _LOWER + k % _LOWER]
            mask, none, half = (tirx.const(n, "uint8") for n in ((1 << bits) - 1, 0, bits))
            code = (byte >> tirx.Select(k % (2 * _LOWER) < _LOWER, none, half)) & mask
        origin = zeros[0][at[-1], k // block].astype("float32") if zeros else zero
        scale = scales[at[-1], k // block].astype("float32")
        number = ((code.astype("float32") - origin) * scale).astype(dtype)
        return te.sum(data[(*at[:-1], k)].astype("float32") * number.astype("float32"), axis=k)

    return te.compute((*data.shape[:-1], weight.shape[0]), product, name="weight_product")


def _n_rows(n: int) -> int:
    """Return the rows to compute, so that tiles of many rows divide them."""
    if n <= _MAX_ROWS:
        return n
    rows = min(range(1, _MAX_ROWS + 1), key=lambda rows: -(-n // rows) * (rows + UNPACKING))
    return -(-n // rows) * rows
