"""Maxima and minima of floating-point numbers in kernels as those of IEEE 754-2019.

TVM compiles ``max(a, b)`` to ``a > b ? a : b``, which loses a NaN in ``a``, and its reductions
start at the lowest finite number, which is larger than minus infinity.
"""

import math
from typing import Any

import numpy as np
from tvm import tir

_KINDS = ["tir.Max", "tir.Min"]
_INTRINSICS = {tir.Max: "llvm.maximum", tir.Min: "llvm.minimum"}


@tir.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def start_at_infinity(function: tir.PrimFunc, *_: Any) -> tir.PrimFunc:
    """Let maxima and minima start at infinities."""
    starts: dict[Any, float] = {}

    def collect(node: Any) -> None:
        if not isinstance(node, tir.BufferStore) or not _is_float(node.value):
            return
        kind = type(node.value)
        operands = (node.value.a, node.value.b) if kind in _INTRINSICS else ()
        loads = [each for each in operands if isinstance(each, tir.BufferLoad)]
        if any(load.buffer.same_as(node.buffer) for load in loads):
            starts[node.buffer] = -math.inf if kind is tir.Max else math.inf

    def replace(store: Any) -> Any:
        value, start = store.value, starts.get(store.buffer)
        if start is None or not isinstance(value, tir.FloatImm):
            return None
        if value.value != math.copysign(float(np.finfo(value.dtype).max), start):
            return None
        return tir.BufferStore(store.buffer, tir.const(start, value.dtype), store.indices)

    tir.stmt_functor.post_order_visit(function.body, collect)
    if not starts:
        return function
    body = tir.stmt_functor.ir_transform(function.body, None, replace, ["tir.BufferStore"])
    return function.with_body(body)


@tir.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def keep_nan(function: tir.PrimFunc, *_: Any) -> tir.PrimFunc:
    """Let maxima and minima be NaN where an operand is."""
    body = tir.stmt_functor.ir_transform(function.body, None, _with_nan, _KINDS)
    return function.with_body(body)


def _with_nan(extreme: Any) -> Any:
    """Return an extreme that is NaN where an operand is; TVM's is where its second one is NaN."""
    if not _is_float(extreme):
        return None
    first, second = extreme.a, extreme.b
    if _is_number(first):
        return None
    if _is_number(second):
        return type(extreme)(second, first)
    name = _INTRINSICS[type(extreme)]
    return tir.call_llvm_pure_intrin(extreme.dtype, name, tir.const(2, "uint32"), first, second)


def _is_number(expression: Any) -> bool:
    """Return whether an expression is a constant other than NaN."""
    constant = expression.value if isinstance(expression, tir.Broadcast) else expression
    return isinstance(constant, tir.FloatImm) and not math.isnan(constant.value)


def _is_float(expression: Any) -> bool:
    return str(expression.dtype).startswith("float")


#: Passes of the lowering, with their phases: before loops are lowered, and after vectors are made.
PASSES = [(0, start_at_infinity), (3, keep_nan)]
