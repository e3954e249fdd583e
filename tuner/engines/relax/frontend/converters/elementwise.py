"""Converters of small operators that TVM's importer converts slowly, wrongly or not at all."""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend

from tuner.engines.relax.frontend.converters.operands import constant_array

# Largest whole exponent that becomes products.
_MAX_PRODUCTS = 4
# Largest exponents of Mish that are not the default.
_MAX_MISH = {"float16": 5.0}
# Version from which the slope of PRelu broadcasts.
_PRELU_BROADCASTS = 7
# Version from which the axes of ReduceLogSumExp are an input.
_AXES_ARE_AN_INPUT = 18
# Types whose numbers convert to whole numbers of these types, by bits, without wrapping around.
_FLOATS = ("float32", "float64")
_BITS = {"int32": 32, "int64": 64}
_Converter = Callable[[Any, Any, dict[str, Any], int], Any]
_Function = Callable[[relax.Expr], relax.Expr]
# Axes of a tensor whose last axis are the channels: batch and channels.
_N_AXES = 2


def fold_with(operator: Callable[[Any, Any], Any]) -> Callable[..., relax.Expr]:
    """Return the converter of an operator of any number of inputs, such as Max.

    TVM stacks the inputs and reduces the stack, which writes all of them once more.
    """

    def convert(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
        del attrs, opset
        return reduce(lambda a, b: builder.emit(operator(a, b)), inputs)

    return convert


def in_float64(convert: _Converter) -> _Converter:
    """Return a converter that computes results of whole numbers in float64.

    Results are rounded towards zero. Those beyond the type become its limit, NaN the least number.
    Those of ONNX Runtime are the same, but for some of ReduceLogSumExp, which are less by 1.
    """

    def convert_any(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        x, emit = inputs[0], builder.emit
        dtype = str(x.ty.dtype)
        if dtype not in _BITS:
            return convert(builder, inputs, attrs, opset)
        wide = [emit(relax.op.astype(x, "float64")), *inputs[1:]]
        number = emit(convert(builder, wide, attrs, opset))
        limit = 2 ** (_BITS[dtype] - 1)
        is_above = emit(relax.op.greater_equal(number, relax.const(float(limit), "float64")))
        whole = emit(_as_whole(emit, number, dtype))
        return relax.op.where(is_above, relax.const(limit - 1, dtype), whole)

    return convert_any


def saturated(convert: _Converter) -> _Converter:
    """Return a converter whose whole results beyond their type become its limit.

    ONNX Runtime reduces whole numbers in float64; here, results are exact, but for those of int64
    within a rounding of its limit.
    """

    def convert_any(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        x, emit = inputs[0], builder.emit
        dtype = str(x.ty.dtype)
        exact = convert(builder, inputs, attrs, opset)
        if dtype not in _BITS:
            return exact
        wide = [emit(relax.op.astype(x, "float64")), *inputs[1:]]
        number = emit(convert(builder, wide, attrs, opset))
        limit = 2 ** (_BITS[dtype] - 1)
        is_above = emit(relax.op.greater_equal(number, relax.const(float(limit), "float64")))
        is_below = emit(relax.op.less_equal(number, relax.const(float(-limit), "float64")))
        capped = emit(relax.op.where(is_above, relax.const(limit - 1, dtype), emit(exact)))
        return relax.op.where(is_below, relax.const(-limit, dtype), capped)

    return convert_any


def convert_reduction(reduction: Callable[..., relax.Expr], axes_since: int) -> _Converter:
    """Return the converter of a reduction whose axes are an input from a version on."""

    def convert(_builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
        axes = _axes(inputs, attrs, opset, axes_since)
        if axes is None and attrs.get("noop_with_empty_axes", 0):
            return inputs[0]
        return reduction(inputs[0], axes, bool(attrs.get("keepdims", 1)))

    return convert


def convert_log_sum_exp(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert ReduceLogSumExp; TVM subtracts infinite numbers from themselves, which gives NaN."""
    x, emit = inputs[0], builder.emit
    axes = _axes(inputs, attrs, opset)
    if axes is None and attrs.get("noop_with_empty_axes", 0):
        return x
    largest = emit(relax.op.max(x, axes, keepdims=True))
    is_finite = emit(relax.op.isfinite(largest))
    shift = emit(relax.op.where(is_finite, largest, relax.const(0, str(x.ty.dtype))))
    powers = emit(relax.op.exp(emit(relax.op.subtract(x, shift))))
    total = emit(relax.op.sum(powers, axes, keepdims=True))
    result = relax.op.add(emit(relax.op.log(total)), shift)
    return result if attrs.get("keepdims", 1) else relax.op.squeeze(emit(result), axes)


def convert_sum(
    term: _Function, of_one: _Function, of_sum: _Function = lambda total: total
) -> _Converter:
    """Return the converter of a function of a sum.

    Args:
        term: Returns the term of an element.
        of_one: Returns the result where an attribute asks to reduce no axis.
        of_sum: Returns the result for a sum.
    """

    def convert(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
        x, axes = inputs[0], _axes(inputs, attrs, opset)
        if axes is None and attrs.get("noop_with_empty_axes", 0):
            return of_one(x)
        terms = builder.emit(term(x))
        return of_sum(builder.emit(relax.op.sum(terms, axes, bool(attrs.get("keepdims", 1)))))

    return convert


def convert_extreme(reduction: Callable[..., relax.Expr]) -> _Converter:
    """Return the converter of an extreme of truth values, which TVM has no limits for."""

    def convert(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr | None:
        x, axes = inputs[0], _axes(inputs, attrs, opset)
        is_noop = axes is None and attrs.get("noop_with_empty_axes", 0)
        if is_noop or str(x.ty.dtype) != "bool":
            return None
        codes = builder.emit(relax.op.astype(x, "uint8"))
        extreme = builder.emit(reduction(codes, axes, bool(attrs.get("keepdims", 1))))
        return relax.op.astype(extreme, "bool")

    return convert


def square(x: relax.Expr) -> relax.Expr:
    """Return the product of a tensor with itself."""
    return relax.op.multiply(x, x)


def convert_cast(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr | None:
    """Convert floating-point numbers to whole ones; TVM converts the others.

    A number that does not fit, or NaN, becomes the least one, as x86 processors have it.
    """
    del opset
    (x,) = inputs
    dtype = str(helper.tensor_dtype_to_np_dtype(attrs["to"]))
    kind = str(getattr(getattr(x, "ty", None), "dtype", ""))
    if kind not in _FLOATS or dtype not in _BITS or isinstance(x, GenericConst):
        return None
    return _as_whole(builder.emit, x, dtype)


def convert_dynamic_quantize(
    builder: Any, inputs: Any, attrs: dict[str, Any], opset: int
) -> relax.Tuple:
    """Convert DynamicQuantizeLinear as ONNX Runtime computes it.

    The scale of zeros is 1; where it underflows to 0, a zero point that is NaN becomes 255.
    """
    del attrs, opset
    (x,), emit = inputs, builder.emit
    zero, one, last = (relax.const(number, "float32") for number in (0.0, 1.0, 255.0))
    highest = emit(relax.op.maximum(emit(relax.op.max(x)), zero))
    lowest = emit(relax.op.minimum(emit(relax.op.min(x)), zero))
    step = emit(relax.op.divide(emit(relax.op.subtract(highest, lowest)), last))
    scale = emit(relax.op.where(emit(relax.op.equal(highest, lowest)), one, step))
    point = emit(relax.op.subtract(zero, emit(relax.op.divide(lowest, scale))))
    number = emit(relax.op.where(emit(relax.op.isnan(point)), last, point))
    rounded = emit(relax.op.round(emit(relax.op.clip(number, 0, 255))))
    code = emit(relax.op.astype(rounded, "uint8"))
    codes = emit(relax.op.quantize(x, scale, code, axis=0, out_dtype="uint8"))
    return relax.Tuple([codes, scale, code])


def convert_quantize(
    builder: Any, inputs: Any, attrs: dict[str, Any], opset: int
) -> relax.Expr | None:
    """Convert QuantizeLinear by a constant 0, by which TVM does not divide."""
    scale, dtype = _scalar(inputs[1]), str(inputs[1].ty.dtype)
    if scale != 0:
        return None
    infinity = relax.const(math.copysign(math.inf, scale), dtype)
    inputs[0] = builder.emit(relax.op.multiply(_cast(builder, inputs[0], dtype), infinity))
    inputs[1] = relax.const(1, dtype)
    return onnx_frontend.QuantizeLinear.get_converter(opset)(builder, inputs, attrs, [{}, {}])


def convert_sign(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr | None:
    """Convert Sign of unsigned numbers, which TVM compares with a negative number."""
    del attrs, opset
    (x,), dtype = inputs, str(inputs[0].ty.dtype)
    if not dtype.startswith("uint"):
        return None
    return relax.op.astype(builder.emit(relax.op.not_equal(x, relax.const(0, dtype))), dtype)


def convert_thresholded(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert ThresholdedRelu; TVM multiplies infinities by 0."""
    del opset
    (x,) = inputs
    dtype = str(x.ty.dtype)
    is_above = builder.emit(relax.op.greater(x, relax.const(attrs.get("alpha", 1.0), dtype)))
    return relax.op.where(is_above, x, relax.const(0, dtype))


def convert_mean(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert Mean."""
    total = fold_with(relax.op.add)(builder, inputs, attrs, opset)
    return relax.op.divide(total, relax.const(len(inputs), str(total.ty.dtype)))


def convert_pow(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert Pow: small whole exponents become products, a half a square root."""
    del attrs, opset
    base, exponent = inputs
    dtype = str(base.ty.dtype)
    value = _scalar(exponent)
    if value is not None and not len(exponent.ty.shape) > len(base.ty.shape):
        if value == 0.5 and "float" in dtype:
            return relax.op.sqrt(base)
        if value in range(1, _MAX_PRODUCTS + 1):
            factor = base if isinstance(base, GenericConst) else builder.emit(base)
            return reduce(lambda a, b: builder.emit(relax.op.multiply(a, b)), [factor] * int(value))
    is_float = "float" in dtype
    kind = dtype if is_float else "float64"
    result = relax.op.power(_cast(builder, base, kind), _cast(builder, exponent, kind))
    return result if is_float else relax.op.astype(builder.emit(result), dtype)


def convert_prelu(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert PRelu; before version 7, a vector has a slope for each channel.

    TVM's own function broadcasts the slope in a block that keeps it out of the kernel before it.
    """
    del attrs
    x, slope = inputs
    n_axes = len(x.ty.shape)
    if opset < _PRELU_BROADCASTS and n_axes > _N_AXES and len(slope.ty.shape) == 1:
        shape = [-1, *[1] * (n_axes - _N_AXES)]
        slope = builder.emit(relax.op.reshape(slope, shape))
    is_negative = builder.emit(relax.op.less(x, relax.const(0, str(x.ty.dtype))))
    return relax.op.where(is_negative, builder.emit(relax.op.multiply(x, slope)), x)


def convert_softplus(_builder: Any, inputs: Any, _attrs: Any, _opset: int) -> relax.Expr:
    """Convert Softplus to one operator, whose definition keeps the digits of small powers."""
    return relax.op.nn.softplus(inputs[0], threshold=math.inf)


def convert_mish(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert Mish: tanh(log(1 + u)) is v / (v + 2) with u = exp(x) and v = u (u + 2)."""
    del attrs, opset
    (x,), emit = inputs, builder.emit
    dtype = str(x.ty.dtype)
    two = relax.const(2, dtype)
    # The quotient is 1 from there on, and v no infinity.
    largest = relax.const(_MAX_MISH.get(dtype, 20.0), dtype)
    power = emit(relax.op.exp(emit(relax.op.minimum(x, largest))))
    part = emit(relax.op.multiply(power, emit(relax.op.add(power, two))))
    return relax.op.multiply(x, emit(relax.op.divide(part, emit(relax.op.add(part, two)))))


def convert_one_hot(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert OneHot with a constant depth; indices below 0 count from the end."""
    del opset
    indices, depth, values = inputs
    size = int(constant_array(depth).reshape(-1)[0])
    axis = int(attrs.get("axis", -1))
    rank = len(indices.ty.shape) + 1
    axis %= rank
    wide = builder.emit(relax.op.expand_dims(_cast(builder, indices, "int64"), axis))
    wrapped = builder.emit(
        relax.op.where(
            builder.emit(relax.op.less(wide, relax.const(0, "int64"))),
            builder.emit(relax.op.add(wide, relax.const(size, "int64"))),
            wide,
        )
    )
    shape = [size if each == axis else 1 for each in range(rank)]
    classes = relax.const(np.arange(size, dtype="int64").reshape(shape))
    is_hot = builder.emit(relax.op.equal(wrapped, classes))
    off, on = (
        builder.emit(relax.op.take(values, relax.const(i, "int64"), axis=0)) for i in range(2)
    )
    return relax.op.where(is_hot, on, off)


def convert_scatter(_builder: Any, inputs: Any, attrs: dict[str, Any], _opset: int) -> relax.Expr:
    """Convert the Scatter of old opsets, whose indices also count from the end."""
    return relax.op.scatter_elements(*inputs, axis=attrs.get("axis", 0))


def convert_topk(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert TopK, sorted even where any order is allowed.

    TVM reads the number of elements of version 10 as 1, and refuses an order that is not sorted.
    """
    del builder
    given = attrs["k"] if opset < 10 else constant_array(inputs[1]).item()
    largest, axis = bool(attrs.get("largest", 1)), int(attrs.get("axis", -1))
    if given < 1:
        raise NotImplementedError("TopK without elements")
    return relax.op.topk(inputs[0], int(given), axis, "both", largest, "int64")


def _axes(
    inputs: Any, attrs: dict[str, Any], opset: int, axes_since: int = _AXES_ARE_AN_INPUT
) -> list[int] | None:
    """Return the axes of a reduction; None for all, or none."""
    axes = attrs.get("axes") if opset < axes_since else constant_array([*inputs, None][1])
    return None if axes is None or len(axes) == 0 else [int(axis) for axis in axes]


def _as_whole(emit: Callable[[relax.Expr], Any], x: relax.Expr, dtype: str) -> relax.Expr:
    """Convert floating-point numbers; the others become the least whole number."""
    kind, least = str(x.ty.dtype), -(2 ** (_BITS[dtype] - 1))
    fits = emit(relax.op.less(emit(relax.op.abs(x)), relax.const(-float(least), kind)))
    number = emit(relax.op.where(fits, x, relax.const(0, kind)))
    return relax.op.where(fits, emit(relax.op.astype(number, dtype)), relax.const(least, dtype))


def _cast(builder: Any, value: relax.Expr, dtype: str) -> relax.Expr:
    if str(value.ty.dtype) == dtype:
        return value
    return builder.emit(relax.op.astype(value, dtype))


def _scalar(value: relax.Expr) -> float | None:
    """Return the value of a constant of one element."""
    if not isinstance(value, GenericConst):
        return None
    array = value.value.numpy()
    return float(array.reshape(-1)[0]) if array.size == 1 else None
