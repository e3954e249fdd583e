"""Comparisons of truth values, which LLVM cannot compare as floats, and of NaN.

TVM takes NaN for equal to every number where it compares for inequality.
"""

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, tirx, topi

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _equal(left: Any, right: Any) -> Any:
    return topi.logical_not(topi.logical_xor(left, right))


def _differ(left: Any, right: Any) -> Any:
    differ = topi.not_equal(left, right)
    for operand in (left, right):
        if str(operand.dtype).startswith(("float", "bfloat")) and not _is_number(operand):
            differ = topi.logical_or(differ, topi.isnan(operand))
    return differ


def _is_number(operand: Any) -> bool:
    return isinstance(operand, tirx.FloatImm) and not math.isnan(operand.value)


def _defined(of_booleans: Any, of_numbers: Any) -> Legalization:
    def legalise(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        left, right = call.args
        if left.same_as(right) and str(left.ty.dtype).startswith(("float", "bfloat")):
            # TVM takes a number for equal to itself.
            is_nan = builder.emit(relax.op.isnan(left))
            return is_nan if of_numbers is _differ else relax.op.logical_not(is_nan)
        define = of_booleans if str(call.args[0].ty.dtype) == "bool" else of_numbers
        name = str(call.op.name).rpartition(".")[2]
        return builder.call_te(define, *call.args, primfunc_name_hint=name)

    return legalise


COMPARISONS: dict[str, Legalization] = {
    "relax.equal": _defined(_equal, topi.equal),
    "relax.not_equal": _defined(topi.logical_xor, _differ),
}
