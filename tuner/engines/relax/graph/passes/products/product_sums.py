"""Sums of whole numbers, and how the numbers that a network computes follow from them."""

from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax

from tuner.engines.relax.graph.passes.products.quantised_operands import (
    HALF,
    QuantisedData,
    QuantisedVisitor,
)
from tuner.engines.relax.graph.passes.visitor import Array, const, dtype_of, name_of

#: Largest difference of two unsigned bytes, and numbers of int32 of each sign.
LARGEST, INT32_RANGE = 255, 2**31
# Distance between a bias and a whole number of steps that is rounding.
_MAX_ROUNDING = 1e-3


@dataclass(frozen=True)
class Sums:
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


class SumsVisitor(QuantisedVisitor):
    """Visitor that follows sums through scales, biases and limits to their quantisation."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._sums: dict[relax.Var, Sums] = {}

    def note(self, noted: Sums) -> relax.Var:
        """Return the float32 numbers for sums, and note how they follow."""
        result = self.materialise(noted)
        self._sums[result] = noted
        return result

    def materialise(self, noted: Sums) -> relax.Var:
        """Return sums as numbers, without their bias."""
        sums = noted.sums
        if noted.offset.any():
            sums = self.emit(relax.op.add(sums, const(noted.offset, "int32")))
        numbers = self.emit(relax.op.astype(sums, "float32"))
        if (noted.scale == 1.0).all():
            return numbers
        # Powers of two change no digit. The numbers are an argument of the kernel, which is
        # verified on numbers around 1: products of bytes times these alone exceed a byte.
        power = 2.0 ** np.ceil(np.log2(np.abs(noted.scale).max(initial=1e-30)))
        near_one = self.emit(relax.op.multiply(numbers, const(noted.scale / power, "float32")))
        return self.emit(relax.op.multiply(near_one, const(np.array(power), "float32")))

    def scale_sums(self, call: relax.Call) -> relax.Expr | None:
        """Note a factor of the results of a product."""
        operand = self._operand(call)
        if operand is None:
            return None
        noted, factor = operand
        if (factor <= 0).any() or factor.dtype != np.float32:
            return None
        scaled = replace(noted, scale=noted.scale * factor, bias=noted.bias * factor)
        return self._noted(call, scaled)

    def add_bias(self, call: relax.Call) -> relax.Expr | None:
        """Note the bias of a product."""
        operand = self._operand(call)
        if operand is None:
            return None
        noted, bias = operand
        return self._noted(call, replace(noted, bias=noted.bias + bias.astype(np.float64)))

    def _operand(self, call: relax.Call) -> tuple[Sums, Array] | None:
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

    def _noted(self, expr: relax.Expr, noted: Sums) -> relax.Var:
        result = self.emit(expr)
        self._sums[result] = noted
        return result

    def limit(self, call: relax.Call, low: float, high: float) -> relax.Expr | None:
        """Note limits of the results of a product."""
        noted = self._sums.get(self.source(call.args[0]))
        if noted is None:
            return None
        # The later limits hold, where both exclude each other.
        low, high = (min(max(limit, low), high) for limit in (noted.low, noted.high))
        return self._noted(call, replace(noted, low=low, high=high))

    def cast(self, call: relax.Call) -> relax.Expr | None:
        """Drop a conversion to float32 and back."""
        noted = self._sums.get(self.source(call.args[0]))
        if noted is None or dtype_of(call) != "int32" or not _is_exact(noted):
            return None
        return relax.op.add(noted.sums, const(noted.offset, "int32"))

    def requantised(self, expr: relax.Expr, scale: float, zero: int) -> relax.Expr | None:
        """Return the codes of a product, from its sums."""
        noted = self._sums.get(self.source(expr))
        if noted is None:
            return None
        steps = noted.bias / noted.scale.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinite biases
            is_whole = np.abs(steps - np.round(steps)) < _MAX_ROUNDING
        # What could pass the range of int32 is added to the numbers instead.
        is_whole &= np.abs(noted.offset + steps) + noted.bound < INT32_RANGE
        in_sums = np.round(np.where(is_whole, steps, 0.0)).astype(np.int64)
        rest = np.where(is_whole, 0.0, noted.bias) / scale
        offset = noted.offset + in_sums
        if (np.abs(offset) + noted.bound).max(initial=0) >= INT32_RANGE:
            return None
        factor = (noted.scale / np.float32(scale)).astype(np.float32)
        numbers = self.materialise(replace(noted, offset=offset, scale=factor))
        if rest.any():
            numbers = self.emit(relax.op.add(numbers, const(rest, "float32")))
        least, most = -zero, LARGEST - zero
        low, high = (min(max(limit / scale, least), most) for limit in (noted.low, noted.high))
        return self._rounded(numbers, zero, low, high)

    def combined(
        self, expr: relax.Expr, scale: float, zero: int, *, is_signed: bool
    ) -> relax.Expr | None:
        """Return the codes of a sum or product of two quantised tensors, as ONNX Runtime rounds.

        For ``a * s + b * t`` with scale ``u`` it adds ``a * (s / u)`` to ``b * (t / u) + c``, where
        the constant ``c`` holds all zero points. Whole numbers of a product are scaled once.
        """
        relu = self.producer(expr, "relax.nn.relu") if zero == 0 else None
        call = self.producer(expr if relu is None else relu.args[0], "relax.add", "relax.multiply")
        operands = [] if call is None else [self.operand(each) for each in call.args]
        known = [each for each in operands if each is not None]
        if call is None or len(known) != len(operands):
            return None
        start = HALF if is_signed else 0
        if name_of(call) == "multiply":
            left, right = (self.centred(each) for each in known)
            numbers = self.emit(relax.op.multiply(left, right))
            ratio = np.float32(known[0].scale) * np.float32(known[1].scale) / np.float32(scale)
            numbers = self.emit(relax.op.multiply(numbers, relax.const(float(ratio), "float32")))
            # The limits also keep the product from being rounded together with the sum.
            numbers = self.emit(relax.op.clip(numbers, float(-zero), float(LARGEST - zero)))
            total = self.emit(relax.op.add(numbers, relax.const(float(zero - start), "float32")))
        else:
            total = self._added(known, np.float32(scale), zero - start, start)
        return self._rounded(total, start, float(-start), float(LARGEST - start))

    def _added(
        self, operands: list[QuantisedData], scale: np.float32, zero: int, start: int
    ) -> relax.Var:
        """Return the codes of a sum before they are rounded, of a type that begins at -start."""
        ratios = [np.float32(each.scale) / scale for each in operands]
        first, second = (
            np.float64(ratio) * (each.zero - start)
            for ratio, each in zip(ratios, operands, strict=True)
        )
        rest = np.float32(zero) - np.float32(first + np.float32(second))
        terms = []
        for each, ratio in zip(operands, ratios, strict=True):
            number = self.emit(relax.op.astype(each.codes, "float32"))
            if start:
                number = self.emit(relax.op.subtract(number, relax.const(float(start), "float32")))
            terms.append(self.emit(relax.op.multiply(number, relax.const(float(ratio), "float32"))))
        shifted = self.emit(relax.op.add(terms[1], relax.const(float(rest), "float32")))
        return self.emit(relax.op.add(terms[0], shifted))

    def _rounded(self, numbers: relax.Var, zero: int, low: float, high: float) -> relax.Expr:
        """Limit and round numbers, and add a zero point."""
        numbers = self.emit(relax.op.clip(numbers, float(low), float(high)))
        rounded = self.emit(relax.op.round(numbers))
        if zero:
            rounded = self.emit(relax.op.add(rounded, relax.const(float(zero), "float32")))
        return relax.op.astype(rounded, "uint8")


def _is_exact(noted: Sums) -> bool:
    """Return whether the numbers are the sums themselves."""
    is_scaled = (noted.scale != 1.0).any() or noted.bias.any()
    return not is_scaled and not np.isfinite([noted.low, noted.high]).any()
