"""Replacement of constant powers, and of divisions by the constant 0, by products."""

import math

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.passes.visitor import CallVisitor, const, dtype_of, name_of
from tuner.engines.relax.ir.tensor_types import shape_of

_FLOATS = ("float16", "bfloat16", "float32", "float64")


@mutator
class PowerSimplifier(CallVisitor):
    """Mutator of powers by -1, 1, 2, 3 and 4, which otherwise cost a logarithm each.

    A division by 0, which TVM refuses, is a product with infinity: both give an infinity of the
    same sign, and NaN for 0.
    """

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Replace one call; constants of many elements or other values stay."""
        if name_of(call) == "divide" and dtype_of(call) in _FLOATS:
            divisor = self.constant(call.args[1])
            if divisor is None or divisor.size != 1 or divisor.any():
                return call
            infinity = np.copysign(math.inf, divisor)
            return relax.op.multiply(call.args[0], const(infinity, dtype_of(call)))
        if name_of(call) != "power":
            return call
        x, exponent = call.args[0], self.scalar(call.args[1])
        is_plain = dtype_of(call) in _FLOATS and shape_of(x) == shape_of(call)
        return self._power(x, exponent, call) if is_plain else call

    def _power(self, x: relax.Expr, exponent: float | None, call: relax.Call) -> relax.Expr:
        if exponent == 1.0:
            return x
        if exponent == -1.0:
            return relax.op.divide(relax.const(1.0, dtype_of(x)), x)
        if exponent not in (2.0, 3.0, 4.0):
            return call
        square = relax.op.multiply(x, x)
        if exponent == 2.0:
            return square
        square = self.emit(square)
        return relax.op.multiply(square, x if exponent == 3.0 else square)
