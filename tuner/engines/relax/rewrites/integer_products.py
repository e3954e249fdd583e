"""Products of bytes in place of products of dequantised numbers.

With data ``(x - z) * s`` and weights ``w * t``, a sum of products is ``s * t`` times
``sum(x * w) - z * sum(w)``. The first sum is one of bytes, which has its own instruction, the
second a constant for each channel. Bytes with a sign are moved to unsigned ones, with their zero
point. Quantisation behind a product scales its integers once, as ONNX Runtime does.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.rewrites.quantised_operands import (
    BYTES,
    HALF,
    QuantisedData,
    QuantisedVisitor,
)
from tuner.engines.relax.rewrites.visitor import Array, const, dtype_of, name_of
from tuner.engines.relax.tensor_types import shape_of

_Rule = Callable[[relax.Call], relax.Expr | None]

_MATRIX = 2
# Products of fewer terms or columns fill too little of an instruction.
_MIN_TERMS, _MIN_COLUMNS = 16, 8
# More products of bytes than this could pass the range of int32.
_LARGEST, _INT32_RANGE = 255, 2**31
_MAX_TERMS = _INT32_RANGE // (_LARGEST * HALF)
# Distance between a bias and a whole number of steps that is rounding.
_MAX_ROUNDING = 1e-3
# Operators that only move or choose numbers, and so commute with quantisation.
_CHOICES = ("nn.max_pool2d", "reshape", "permute_dims", "squeeze", "expand_dims", "strided_slice")


@dataclass(frozen=True)
class _Sums:
    """Sums of products of bytes, and how numbers follow from them.

    Attributes:
        sums: The sums, int32, without anything added.
        bound: Largest magnitude of the sums of each channel.
        offset: Integers to add to each channel.
        scale: Factor of each channel.
        bias: Numbers to add to each channel then.
        low: Lower limit of the results.
        high: Upper limit of the results.
    """

    sums: relax.Expr
    bound: Array
    offset: Array
    scale: Array
    bias: Array
    low: float = -np.inf
    high: float = np.inf


def find_integer_products(module: tvm.IRModule) -> tvm.IRModule:
    """Multiply dequantised numbers as integers where weights are constant."""
    return _Finder(module).run(module)


@mutator
class _Finder(QuantisedVisitor):
    """Mutator that follows quantised data through the calls of a function."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._sums: dict[relax.Var, _Sums] = {}
        self._rules: dict[str, _Rule] = {
            "nn.conv2d": self._convolve,
            "matmul": self._multiply,
            "multiply": self._scale,
            "add": self._add,
            "reshape": self._reshape,
            "nn.relu": lambda call: self._clip(call, 0.0, np.inf),
            "clip": lambda call: self._clip(call, *_limits(call)),
            "astype": self._cast,
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
        if layouts != ["NCHW", "OIHW", "NCHW"] or int(attrs.groups) != 1:
            return None
        data, weight = self.quantised(call.args[0]), self.weight(call.args[1], 0)
        if data is None or weight is None:
            return None
        codes, scale = weight
        if not _is_worth(codes.shape[0], codes.size // codes.shape[0]):
            return None
        top, left, bottom, right = (int(size) for size in attrs.padding)
        padded = self._pad(data, (0, 0, 0, 0, top, bottom, left, right))
        sums = relax.op.nn.conv2d(
            padded, const(codes, "int8"), attrs.strides, 0, attrs.dilation, out_dtype="int32"
        )
        return self._numbers(sums, data, codes.reshape(len(codes), -1).T, scale, 1)

    def _multiply(self, call: relax.Call) -> relax.Expr | None:
        data, weight = self.quantised(call.args[0]), self.weight(call.args[1], 1)
        if data is None or weight is None or len(shape_of(call)) < _MATRIX:
            return None
        codes, scale = weight
        if codes.ndim != _MATRIX or not _is_worth(codes.shape[1], codes.shape[0]):
            return None
        sums = relax.op.matmul(data.codes, const(codes, "int8"), out_dtype="int32")
        axis = len(shape_of(call)) - 1
        return self._numbers(sums, data, codes, scale, axis)

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

    def _numbers(
        self, call: relax.Call, data: QuantisedData, codes: Array, scale: Array, axis: int
    ) -> relax.Expr:
        """Return the float32 numbers for sums of products, whose channels lie along an axis.

        Args:
            call: The sums.
            data: The data.
            codes: Weights, shape (terms, channels).
            scale: Scale of the weights of each channel.
            axis: Axis of the channels.
        """
        sums = self.emit(call)
        rank = len(shape_of(sums))
        shape = [-1 if each == axis else 1 for each in range(rank)]
        wide = codes.astype(np.int64)
        totals, bound = wide.sum(0).reshape(shape), _LARGEST * np.abs(wide).sum(0).reshape(shape)
        if isinstance(data.zero, int):
            offset = -data.zero * totals
        else:
            zero = self.emit(relax.op.astype(data.zero, "int32"))
            shift = self.emit(relax.op.multiply(zero, const(totals, "int32")))
            sums = self.emit(relax.op.subtract(sums, shift))
            offset, bound = np.zeros_like(totals), 2 * bound
        factor = np.broadcast_to(scale, totals.size).reshape(shape).astype(np.float32)
        if not isinstance(data.scale, relax.Expr):
            factor = factor * np.float32(data.scale)
        noted = _Sums(sums, bound, offset, factor, np.zeros_like(totals, np.float64))
        result = self._materialise(noted)
        if isinstance(data.scale, relax.Expr):
            return relax.op.multiply(result, data.scale)
        self._sums[result] = noted
        return result

    def _materialise(self, noted: _Sums) -> relax.Var:
        sums = noted.sums
        if noted.offset.any():
            sums = self.emit(relax.op.add(sums, const(noted.offset, "int32")))
        return self._scaled(self.emit(relax.op.astype(sums, "float32")), noted.scale)

    def _scaled(self, numbers: relax.Var, scale: Array) -> relax.Var:
        """Multiply by a factor for each channel: a number near 1 and the same power of two.

        Powers of two change no digit. The numbers are an argument of the kernel, which is verified
        on numbers around 1: products of bytes times these alone are out of the range of a byte.
        """
        if (scale == 1.0).all():
            return numbers
        power = 2.0 ** np.ceil(np.log2(np.abs(scale).max(initial=1e-30)))
        near_one = self.emit(relax.op.multiply(numbers, const(scale / power, "float32")))
        return self.emit(relax.op.multiply(near_one, const(np.array(power), "float32")))

    def _scale(self, call: relax.Call) -> relax.Expr | None:
        """Note a factor of the results of a product."""
        operand = self._operand(call)
        if operand is None:
            return None
        noted, factor = operand
        if (factor <= 0).any() or factor.dtype != np.float32:
            return None
        scaled = replace(noted, scale=noted.scale * factor, bias=noted.bias * factor)
        return self._noted(call, scaled)

    def _add(self, call: relax.Call) -> relax.Expr | None:
        """Note the bias of a product."""
        operand = self._operand(call)
        if operand is None:
            return None
        noted, bias = operand
        return self._noted(call, replace(noted, bias=noted.bias + bias.astype(np.float64)))

    def _operand(self, call: relax.Call) -> tuple[_Sums, Array] | None:
        """Return sums, and a constant for each channel, if these are the operands."""
        for operand, other in (call.args, call.args[::-1]):
            noted = self._sums.get(self.source(operand))
            value = None if noted is None else self.known(other)
            if noted is None or value is None or np.isfinite([noted.low, noted.high]).any():
                continue
            rank = noted.scale.ndim
            shape = (1,) * (rank - value.ndim) + value.shape
            if len(shape) == rank and all(
                n in (1, extent) for n, extent in zip(shape, noted.scale.shape, strict=True)
            ):
                return noted, value.reshape(shape)
        return None

    def _noted(self, expr: relax.Expr, noted: _Sums) -> relax.Var:
        result = self.emit(expr)
        self._sums[result] = noted
        return result

    def _reshape(self, call: relax.Call) -> relax.Expr | None:
        """Fold the reshape of a bias that is quantised itself."""
        if self.producer(call.args[0], "relax.dequantize") is None:
            return None
        value = self.known(call.args[0])
        return None if value is None else const(value.reshape(shape_of(call)), "float32")

    def _clip(self, call: relax.Call, low: float, high: float) -> relax.Expr | None:
        noted = self._sums.get(self.source(call.args[0]))
        if noted is None:
            return None
        # The later limits hold, where both exclude each other.
        low, high = (min(max(limit, low), high) for limit in (noted.low, noted.high))
        return self._noted(call, replace(noted, low=low, high=high))

    def _cast(self, call: relax.Call) -> relax.Expr | None:
        """Drop a conversion to float32 and back."""
        noted = self._sums.get(self.source(call.args[0]))
        if noted is None or dtype_of(call) != "int32" or not _is_exact(noted):
            return None
        return relax.op.add(noted.sums, const(noted.offset, "int32"))

    def _quantise(self, call: relax.Call) -> relax.Expr | None:
        """Quantise as unsigned bytes."""
        scale, zero = self.scalar(call.args[1]), self.scalar(call.args[2])
        dtype = dtype_of(call)
        if scale is None or zero is None or dtype not in BYTES:
            return None
        zero = int(zero) + (HALF if dtype == "int8" else 0)
        codes = self._chosen(call.args[0], scale, zero)
        if codes is None:
            codes = self._requantised(call.args[0], scale, zero)
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
        data = None if call is None else self.quantised(call.args[0])
        if (
            call is None
            or data is None
            or any(isinstance(each, relax.Expr) for each in (data.scale, data.zero))
        ):
            return None
        if (data.scale, data.zero) != (np.float32(scale), zero):
            return None
        return relax.Call(call.op, [data.codes, *call.args[1:]], call.attrs, call.ty_args)

    def _requantised(self, expr: relax.Expr, scale: float, zero: int) -> relax.Expr | None:
        """Return the codes of a product, from its sums."""
        noted = self._sums.get(self.source(expr))
        if noted is None:
            return None
        steps = noted.bias / noted.scale.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinite biases
            is_whole = np.abs(steps - np.round(steps)) < _MAX_ROUNDING
        # What could pass the range of int32 is added to the numbers instead.
        is_whole &= np.abs(noted.offset + steps) + noted.bound < _INT32_RANGE
        in_sums = np.round(np.where(is_whole, steps, 0.0)).astype(np.int64)
        rest = np.where(is_whole, 0.0, noted.bias) / scale
        offset = noted.offset + in_sums
        if (np.abs(offset) + noted.bound).max(initial=0) >= _INT32_RANGE:
            return None
        factor = (noted.scale / np.float32(scale)).astype(np.float32)
        numbers = self._materialise(replace(noted, offset=offset, scale=factor))
        if rest.any():
            numbers = self.emit(relax.op.add(numbers, const(rest, "float32")))
        least, most = -zero, _LARGEST - zero
        low, high = (min(max(limit / scale, least), most) for limit in (noted.low, noted.high))
        numbers = self.emit(relax.op.clip(numbers, float(low), float(high)))
        rounded = self.emit(relax.op.round(numbers))
        if zero:
            rounded = self.emit(relax.op.add(rounded, relax.const(float(zero), "float32")))
        return relax.op.astype(rounded, "uint8")

    def _dequantise(self, call: relax.Call) -> relax.Expr | None:
        """Dequantise from the unsigned codes."""
        unsigned = self.unsigned.get(self.source(call.args[0]))
        zero = self.scalar(call.args[2])
        if unsigned is None or zero is None:
            return None
        moved = relax.const(int(zero) + HALF, "uint8")
        attrs = call.attrs
        return relax.op.dequantize(unsigned, call.args[1], moved, attrs.axis, str(attrs.out_dtype))


def _is_exact(noted: _Sums) -> bool:
    """Return whether the numbers are the sums themselves."""
    is_scaled = (noted.scale != 1.0).any() or noted.bias.any()
    return not is_scaled and not np.isfinite([noted.low, noted.high]).any()


def _is_worth(n_columns: int, n_terms: int) -> bool:
    return n_columns >= _MIN_COLUMNS and _MIN_TERMS <= n_terms <= _MAX_TERMS


def _limits(call: relax.Call) -> tuple[float, float]:
    return tuple(float(limit.value) for limit in call.args[1:])  # type: ignore[return-value]
