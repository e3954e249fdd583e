"""Replacement of constant powers by products."""

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.rewrites.visitor import CallVisitor, dtype_of
from tuner.engines.relax.tensor_types import shape_of

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def simplify_powers(module: tvm.IRModule) -> tvm.IRModule:
    """Replace powers by -1, 1, 2, 3 and 4, which otherwise cost a logarithm each."""
    return _Simplifier(module).run(module)


@mutator
class _Simplifier(CallVisitor):
    """Mutator that replaces power(x, constant)."""

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Replace one power; exponents of many elements or other values stay."""
        if getattr(call.op, "name", "") != "relax.power":
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
