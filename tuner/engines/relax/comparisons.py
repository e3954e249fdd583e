"""Comparisons of booleans, of which TVM makes instructions for floats that LLVM refuses."""

from collections.abc import Callable
from typing import Any

from tvm import relax, topi

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _equal(left: Any, right: Any) -> Any:
    return topi.logical_not(topi.logical_xor(left, right))


def _unless_boolean(define: Callable[[Any, Any], Any]) -> Legalization:
    """Leave the comparison of numbers to TVM's definition."""

    def legalise(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if str(call.args[0].ty.dtype) != "bool":
            return call.op.get_attr("FLegalize")(builder, call)
        name = str(call.op.name).rpartition(".")[2]
        return builder.call_te(define, *call.args, primfunc_name_hint=name)

    return legalise


COMPARISONS: dict[str, Legalization] = {
    "relax.equal": _unless_boolean(_equal),
    "relax.not_equal": _unless_boolean(topi.logical_xor),
}
