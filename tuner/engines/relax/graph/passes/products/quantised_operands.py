"""Operands of products that stand for bytes: dequantised data, and weights."""

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from tuner.engines.relax.graph.passes.visitor import Array, CallVisitor, const, dtype_of, name_of
from tuner.engines.relax.ir.tensor_types import shape_of

#: Types of quantised tensors, and the distance between the two.
BYTES, HALF = ("uint8", "int8"), 128
_MATRIX = 2


@dataclass(frozen=True)
class QuantisedData:
    """A quantised tensor.

    Attributes:
        codes: Its numbers, uint8.
        zero: Their zero point: a number, or a tensor of one uint8 element.
        scale: Their scale; a tensor of one element, or a number.
    """

    codes: relax.Expr
    zero: int | relax.Expr
    scale: float | relax.Expr


class QuantisedVisitor(CallVisitor):
    """Visitor that knows which numbers are dequantised bytes.

    Attributes:
        unsigned: Unsigned bytes that signed ones were computed from, or moved to.
    """

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.unsigned: dict[relax.Expr, relax.Expr] = {}

    def quantised(self, expr: relax.Expr) -> QuantisedData | None:
        """Return the codes of a dequantised tensor that is not constant, with one scale."""
        if dtype_of(expr) != "float32":
            return None
        call = self.producer(expr, "relax.dequantize")
        if call is not None:
            codes, scale, zero = call.args
            if _n_elements(scale) != 1 or _n_elements(zero) != 1:
                return None
            value = self.scalar(scale)
            return self._coded(codes, zero, scale if value is None else np.float32(value))
        call, zero = self.producer(expr, "relax.subtract"), None
        if call is not None:
            expr, zero = call.args
            if _n_elements(zero) != 1:
                return None
            if self.constant(zero) is None:
                cast = self.producer(zero, "relax.astype")
                if cast is None or dtype_of(cast.args[0]) not in BYTES:
                    return None
                zero = cast.args[0]
        cast = self.producer(expr, "relax.astype")
        return None if cast is None else self._coded(cast.args[0], zero, 1.0)

    def fixed(self, expr: relax.Expr) -> QuantisedData | None:
        """Return the codes of a dequantised tensor whose scale and zero point are constant."""
        data = self.quantised(expr)
        if data is None or any(isinstance(each, relax.Expr) for each in (data.scale, data.zero)):
            return None
        return data

    def operand(self, expr: relax.Expr) -> QuantisedData | None:
        """Return the codes of a dequantised tensor with known scale and zero, perhaps constant."""
        call = self.producer(expr, "relax.dequantize")
        codes, scale, zero = (None,) * 3 if call is None else map(self.constant, call.args)
        if codes is None or codes.dtype.name not in BYTES:
            return self.fixed(expr)
        if scale is None or zero is None or max(scale.size, zero.size) != 1:
            return None
        shift = HALF if codes.dtype == np.int8 else 0
        moved = const(codes.astype(np.int16) + shift, "uint8")
        return QuantisedData(
            moved, int(zero.reshape(-1)[0]) + shift, np.float32(scale.reshape(-1)[0])
        )

    def centred(self, data: QuantisedData) -> relax.Var:
        """Return codes minus their zero point, as float32."""
        zero: relax.Expr = (
            relax.const(float(data.zero), "float32")
            if isinstance(data.zero, int)
            else self.emit(relax.op.astype(data.zero, "float32"))
        )
        numbers = self.emit(relax.op.astype(data.codes, "float32"))
        return self.emit(relax.op.subtract(numbers, zero))

    def _coded(
        self, codes: relax.Expr, zero: relax.Expr | None, scale: float | relax.Expr
    ) -> QuantisedData | None:
        dtype = dtype_of(codes)
        if dtype not in BYTES or self.constant(codes) is not None:
            return None
        number = 0.0 if zero is None else self.scalar(zero)
        if number is None:
            is_known = dtype == "uint8" and dtype_of(zero) == "uint8"
            return QuantisedData(codes, zero, scale) if is_known else None
        limits = np.iinfo(dtype)
        if number != int(number) or not limits.min <= number <= limits.max:
            return None
        if dtype == "uint8":
            return QuantisedData(codes, int(number), scale)
        unsigned = self.unsigned.get(self.source(codes))
        if unsigned is None:
            wide = self.emit(relax.op.astype(codes, "int16"))
            moved = self.emit(relax.op.add(wide, relax.const(HALF, "int16")))
            unsigned = self.emit(relax.op.astype(moved, "uint8"))
            self.unsigned[self.source(codes)] = unsigned
        return QuantisedData(unsigned, int(number) + HALF, scale)

    def weight(self, expr: relax.Expr, axis: int) -> tuple[Array, Array] | None:
        """Return constant weights as whole numbers, and the scale of each channel along an axis."""
        value = self.constant(expr)
        if value is not None:
            return _whole(value, np.ones(1, np.float32)) if value.dtype == np.float32 else None
        call = self.producer(expr, "relax.dequantize", "relax.permute_dims")
        if call is None:
            return None
        if name_of(call) == "dequantize":
            return self._dequantised_weight(call, axis)
        axes = call.attrs.axes
        if len(shape_of(call)) != _MATRIX or (axes is not None and [*map(int, axes)] != [1, 0]):
            return None
        inner = self.weight(call.args[0], 1 - axis)
        return None if inner is None else (np.ascontiguousarray(inner[0].T), inner[1])

    def _dequantised_weight(self, call: relax.Call, axis: int) -> tuple[Array, Array] | None:
        value, scale, zero = map(self.constant, call.args)
        if value is None or scale is None or zero is None or value.dtype.name not in BYTES:
            return None
        if value.ndim < _MATRIX:
            return None
        place = int(call.attrs.axis) % value.ndim
        if max(scale.size, zero.size) > 1 and place != axis:
            return None
        shape = [-1 if each == place else 1 for each in range(value.ndim)]
        centred = value.astype(np.int32) - zero.astype(np.int32).reshape(shape)
        return _whole(centred, scale.reshape(-1))

    def known(self, expr: relax.Expr) -> Array | None:
        """Return the value of a constant, or of a dequantised one."""
        value = self.constant(expr)
        call = self.producer(expr, "relax.dequantize")
        if value is not None or call is None:
            return value
        value, scale, zero = map(self.constant, call.args)
        if value is None or scale is None or zero is None or max(scale.size, value.ndim) == 0:
            return None
        if scale.size > 1 and value.ndim != 1:
            return None
        centred = value.astype(np.int64) - zero.reshape(-1).astype(np.int64)
        return (centred * scale.reshape(-1).astype(np.float64)).reshape(value.shape)


def are_bytes(codes: Array) -> bool:
    """Return whether whole numbers are in the range of signed bytes."""
    return bool(codes.min(initial=0) >= -HALF and codes.max(initial=0) < HALF)


def _whole(value: Array, scale: Array) -> tuple[Array, Array] | None:
    """Return differences of bytes; None if the numbers are not whole or out of their range."""
    if not value.size or not np.abs(value).max() < 2 * HALF:
        return None
    codes = value.astype(np.int16)
    return (codes, scale) if np.array_equal(codes, value) and (scale > 0).all() else None


def _n_elements(expr: relax.Expr) -> int:
    return int(np.prod(shape_of(expr), dtype=np.int64))
