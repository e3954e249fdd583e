"""Definitions of operators whose definition by TVM is wrong at NaN, infinities and limits of types.

They replace TVM's, which also takes NaN for equal to every number where it compares for inequality,
and compares truth values as floats, which LLVM cannot. Maxima that keep NaN are a matter of
compilation: see ``extremes.py``.
"""

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.ir import GenericConst

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]

_FLOATS = ("float", "bfloat")


def _is_float(value: Any) -> bool:
    return str(value.ty.dtype).startswith(_FLOATS)


def _sign(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Define a sign that is NaN for NaN, and a zero for that zero."""
    if not _is_float(call):
        return call.op.get_attr("FLegalize")(builder, call)

    def define(x: te.Tensor) -> te.Tensor:
        one, zero = tirx.const(1, x.dtype), tirx.const(0, x.dtype)

        def element(*i: Any) -> Any:
            return tirx.Select(x(*i) > zero, one, tirx.Select(x(*i) < zero, -one, x(*i)))

        return te.compute(x.shape, element, "sign")

    return builder.call_te(define, call.args[0], primfunc_name_hint="sign")


def _product(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Define a product with 0, which is NaN for infinities and NaN; TVM takes it for 0."""
    for x, factor in (call.args, call.args[::-1]):
        if _is_float(call) and _is_zero(factor):
            return builder.call_te(_product_with_zero, x, primfunc_name_hint="multiply")
    return call.op.get_attr("FLegalize")(builder, call)


def _difference(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Define a number minus itself, which is NaN for infinities and NaN; TVM takes it for 0."""
    x, other = call.args
    if _is_float(call) and x.same_as(other):
        return builder.call_te(_product_with_zero, x, primfunc_name_hint="subtract")
    return call.op.get_attr("FLegalize")(builder, call)


def _quotient(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Define a quotient of 0, which is NaN for 0 and NaN; TVM takes it for 0."""
    dividend, divisor = call.args
    if _is_float(call) and _is_zero(dividend):
        return builder.call_te(_quotient_of_zero, divisor, primfunc_name_hint="divide")
    return call.op.get_attr("FLegalize")(builder, call)


def _is_zero(value: relax.Expr) -> bool:
    is_number = isinstance(value, GenericConst) and not value.ty.shape.values
    return is_number and float(value.value.numpy()) == 0.0


def _quotient_of_zero(x: te.Tensor) -> te.Tensor:
    zero, nan = (tirx.const(number, x.dtype) for number in (0.0, math.nan))
    return te.compute(
        x.shape, lambda *i: tirx.Select(tirx.abs(x(*i)) > zero, zero, nan), "quotient"
    )


def _product_with_zero(x: te.Tensor) -> te.Tensor:
    zero, infinity, nan = (tirx.const(number, x.dtype) for number in (0.0, math.inf, math.nan))

    def element(*i: Any) -> Any:
        return tirx.Select(tirx.abs(x(*i)) < infinity, zero, nan)

    return te.compute(x.shape, element, "product")


def _position_of(extreme: Callable[..., te.Tensor]) -> Legalization:
    """Define the first position of an extreme along an axis, which is NaN where one is.

    TVM's reduction starts at the limit of the type, and keeps no position where all are there.
    """

    def legalise(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        (x,), axis = call.args, call.attrs.axis
        if axis is None:
            x, axis = builder.emit(relax.op.reshape(x, [-1])), 0
        axis = int(axis) % len(x.ty.shape)
        # A kernel has an axis.
        keepdims = bool(call.attrs.keepdims) or len(x.ty.shape) == 1
        hint = str(call.op.name).rpartition(".")[2]
        largest = builder.call_te(extreme, x, axis, True, primfunc_name_hint=hint)
        position = builder.call_te(
            lambda x, y: _first_equal(x, y, axis, str(call.ty.dtype), keepdims),
            x,
            builder.emit(largest),
            primfunc_name_hint=f"{hint}_position",
        )
        is_whole = len(x.ty.shape) == 1
        return relax.op.reshape(builder.emit(position), call.ty.shape) if is_whole else position

    return legalise


def _first_equal(
    x: te.Tensor, number: te.Tensor, axis: int, dtype: str, keepdims: bool
) -> te.Tensor:
    """Return where along an axis a number, or NaN, comes first."""
    k = te.reduce_axis((0, x.shape[axis]), "k")
    shape = [size for i, size in enumerate(x.shape) if i != axis or keepdims]
    if keepdims:
        shape[axis] = 1

    def position(*i: Any) -> Any:
        before, after = i[:axis], i[axis + keepdims :]
        each = x(*before, k, *after)
        is_it = tirx.EQ(each, number(*before, 0, *after))
        if str(x.dtype).startswith(_FLOATS):
            is_it = tirx.Or(is_it, tirx.isnan(each))
        return te.min(tirx.Select(is_it, tirx.Cast(dtype, k), tirx.max_value(dtype)), axis=k)

    return te.compute(shape, position, "position")


def _max_pool(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Define a maximum of windows with padding by minus infinity, not the lowest number."""
    attrs, rank = call.attrs, len(call.attrs.pool_size)
    if not _is_float(call) or not any(int(n) for n in attrs.padding):
        return call.op.get_attr("FLegalize")(builder, call)
    before, after = ([int(n) for n in part] for part in _halves(attrs.padding))
    if attrs.ceil_mode:
        after = [n + int(step) - 1 for n, step in zip(after, attrs.strides, strict=True)]
    layout = str(attrs.layout)
    spatial = [axis for axis, name in enumerate(layout) if name in "DHW"]

    def define(x: te.Tensor) -> te.Tensor:
        widths = [[0] * len(layout), [0] * len(layout)]
        for number, axis in enumerate(spatial):
            widths[0][axis], widths[1][axis] = before[number], after[number]
        padded = topi.nn.pad(x, *widths, tirx.const(-math.inf, x.dtype), name="pad_temp")
        pool = getattr(topi.nn, f"pool{rank}d")
        sizes = (attrs.pool_size, attrs.strides, attrs.dilation, [0] * (2 * rank))
        return pool(padded, *sizes, pool_type="max", layout=layout)

    hint = str(call.op.name).rpartition(".")[2]
    return builder.call_te(define, call.args[0], primfunc_name_hint=hint)


def _halves(values: Any) -> tuple[Any, Any]:
    n = len(values) // 2
    return values[:n], values[n:]


def _softplus(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Define log(1 + exp(x)) with the digits of a small power, which TVM adds to 1."""
    attrs = call.attrs

    def define(x: te.Tensor) -> te.Tensor:
        zero, beta = tirx.const(0, x.dtype), tirx.const(float(attrs.beta), x.dtype)

        def element(*i: Any) -> Any:
            scaled = x(*i) * beta
            result = (tirx.max(scaled, zero) + tirx.log1p(tirx.exp(-tirx.abs(scaled)))) / beta
            if math.isinf(float(attrs.threshold)):
                return result
            return tirx.Select(scaled > tirx.const(float(attrs.threshold), x.dtype), x(*i), result)

        return te.compute(x.shape, element, "softplus")

    return builder.call_te(define, call.args[0], primfunc_name_hint="softplus")


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


def _compared(of_booleans: Any, of_numbers: Any) -> Legalization:
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


#: Definitions for all targets.
DEFINITIONS: dict[str, Legalization] = {
    "relax.argmax": _position_of(topi.max),
    "relax.argmin": _position_of(topi.min),
    "relax.divide": _quotient,
    "relax.equal": _compared(_equal, topi.equal),
    "relax.multiply": _product,
    "relax.nn.softplus": _softplus,
    "relax.not_equal": _compared(topi.logical_xor, _differ),
    "relax.sign": _sign,
    "relax.subtract": _difference,
    **{f"relax.nn.max_pool{n}d": _max_pool for n in (1, 2, 3)},
}
