"""Converters for functions of torch that lose digits, or operands, in TVM's importer."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

# The series of log(1 + x) is more accurate than a sum with 1 below it.
_MAX_LOG1P_SERIES = 0.5
# Terms of cumulated sums that are computed at a time.
_MAX_TERMS = 1 << 24

_COMPARISONS = {
    "eq": relax.op.equal,
    "ge": relax.op.greater_equal,
    "gt": relax.op.greater,
    "le": relax.op.less_equal,
    "lt": relax.op.less,
    "ne": relax.op.not_equal,
}
_OF_TRUTH_VALUES = {
    relax.op.add: relax.op.logical_or,
    relax.op.multiply: relax.op.logical_and,
}


def _convert_log1p(node: Any, importer: Any) -> relax.Expr:
    """Convert log(1 + x), which is 2 atanh(x / (2 + x)) near 0."""
    x = importer.env[node.args[0]]
    one, two, limit = (_like(x, value) for value in (1.0, 2.0, _MAX_LOG1P_SERIES))
    near = two * relax.op.atanh(x / (x + two))
    is_near = relax.op.less(relax.op.abs(x), limit)
    return importer.block_builder.emit(relax.op.where(is_near, near, relax.op.log(x + one)))


def _convert_expm1(node: Any, importer: Any) -> relax.Expr:
    return importer.block_builder.emit(_expm1(importer.env[node.args[0]]))


def _expm1(x: relax.Expr) -> relax.Expr:
    """Return exp(x) - 1, which is tanh(x / 2) (exp(x) + 1)."""
    half = relax.op.tanh(_like(x, 0.5) * x)
    return half * (relax.op.exp(x) + _like(x, 1.0))


def _convert_elu(node: Any, importer: Any) -> relax.Expr:
    """Convert an exponential unit; TVM drops the scales of selu and celu, and digits near 0."""
    names = ("alpha", "scale", "input_scale")
    given = operands_of(node, *names)
    alpha, scale, input_scale = (float(given.get(name, 1.0)) for name in names)
    x = importer.env[node.args[0]]
    emit = importer.block_builder.emit
    below = _expm1(emit(x * _like(x, input_scale))) * _like(x, alpha)
    unit = relax.op.where(relax.op.greater(x, _like(x, 0.0)), x, below)
    return emit(unit * _like(x, scale))


def _convert_extreme(op: Callable[..., Any]) -> Callable[[Any, Any], relax.Expr]:
    """Return the converter of an extreme over axes, which TVM does not know."""

    def convert(node: Any, importer: Any) -> relax.Expr:
        given = operands_of(node, "dim", "keepdim")
        axes = given.get("dim") or None
        x = importer.env[node.args[0]]
        return importer.block_builder.emit(op(x, axes, keepdims=bool(given.get("keepdim", False))))

    return convert


def _convert_log_cumulated(node: Any, importer: Any) -> relax.Expr:
    """Convert logcumsumexp: each element has the logarithm of a sum over the elements up to it.

    Raises:
        NotImplementedError: If the terms of all sums are too many to be stored.
    """
    x, axis = importer.env[node.args[0]], int(operands_of(node, "dim")["dim"])
    shape = [int(size) for size in node.meta["val"].shape]
    if not shape or shape[axis] ** 2 * math.prod(shape) > _MAX_TERMS * shape[axis]:
        raise NotImplementedError("logcumsumexp of a scalar, or of a long axis")
    emit = importer.block_builder.emit
    axis, n = axis % len(shape), shape[axis]
    terms = emit(relax.op.expand_dims(x, axis))
    mask = np.tril(np.ones((n, n), bool)).reshape(n, n, *[1] * (len(shape) - axis - 1))
    terms = emit(relax.op.where(relax.const(mask), terms, _like(x, -math.inf)))
    largest = emit(relax.op.max(terms, axis + 1, keepdims=True))
    is_finite = emit(relax.op.isfinite(largest))
    shift = emit(relax.op.where(is_finite, largest, _like(x, 0.0)))
    total = emit(relax.op.sum(emit(relax.op.exp(emit(terms - shift))), axis + 1, keepdims=True))
    return emit(relax.op.squeeze(emit(emit(relax.op.log(total)) + shift), [axis + 1]))


def _convert_cumulated(node: Any, importer: Any) -> relax.Expr:
    """Convert a cumulated sum; TVM's of truth values are truth values."""
    x = _operand(node.args[0], node, importer)
    axis = operands_of(node, "dim")["dim"]
    return importer.block_builder.emit(relax.op.cumsum(x, axis, dtype_of(node)))


def _convert_multiplied(node: Any, importer: Any) -> relax.Expr:
    """Convert a product over axes; TVM's of whole numbers may overflow their type."""
    given = operands_of(node, "dim", "keepdim")
    x = _operand(node.args[0], node, importer)
    axes, is_kept = given.get("dim"), bool(given.get("keepdim"))
    return importer.block_builder.emit(relax.op.prod(x, axes, is_kept))


def _convert_clamp(node: Any, importer: Any) -> relax.Expr:
    """Convert a clamp; TVM casts infinity, its bound where none is given, to whole numbers."""
    given = operands_of(node, "min", "max")
    data = _operand(node.args[0], node, importer)
    for op, bound in ((relax.op.maximum, given.get("min")), (relax.op.minimum, given.get("max"))):
        if bound is not None:
            # A comparison with NaN is false, and chooses the second operand: NaN stays.
            data = importer.block_builder.emit(op(_operand(bound, node, importer), data))
    return data


def _convert_arithmetic(op: Callable[[Any, Any], Any]) -> Callable[[Any, Any], relax.Expr]:
    """Return the converter of an operator whose operands have the dtype of its result.

    TVM takes the dtype of the first one, drops the factor of the second one of a sum, and has no
    sums and products of truth values.
    """

    def convert(node: Any, importer: Any) -> relax.Expr:
        emit, factor = importer.block_builder.emit, node.kwargs.get("alpha", 1)
        dtype = node.meta["val"].dtype
        # torch does not round numbers to half precision, where some are infinite or 0.
        numbers = [each for each in (*node.args, factor) if not isinstance(each, fx.Node)]
        is_wide = not all(_has_digits(dtype, number) for number in numbers)
        wide = "float32" if is_wide else _name(dtype)
        left, right = (_operand(value, node, importer, wide) for value in node.args)
        if dtype == torch.bool:
            if factor != 1:
                raise NotImplementedError("a factor in a sum of truth values")
            return emit(_OF_TRUTH_VALUES[op](left, right))
        if factor != 1:
            right = emit(right * relax.const(factor, wide))
        result = emit(op(left, right))
        return emit(relax.op.astype(result, _name(dtype))) if is_wide else result

    return convert


def _has_digits(dtype: torch.dtype, number: float) -> bool:
    """Return whether a type of half precision has the digits of a number; others are not asked."""
    if dtype not in (torch.float16, torch.bfloat16) or number == 0 or not math.isfinite(number):
        return True
    info = torch.finfo(dtype)
    return bool(info.tiny <= abs(number) <= info.max)


def _convert_shift(op: Callable[[Any, Any], Any]) -> Callable[[Any, Any], relax.Expr]:
    """Return the converter of a shift; LLVM has none by a negative number, or by all bits."""

    def convert(node: Any, importer: Any) -> relax.Expr:
        emit, dtype = importer.block_builder.emit, node.meta["val"].dtype
        n_bits, (source, value) = torch.iinfo(dtype).bits, node.args
        x = _operand(source, node, importer)
        is_signed_right = op is relax.op.right_shift and torch.iinfo(dtype).min < 0
        rest = emit(op(x, _like(x, n_bits - 1)) if is_signed_right else relax.op.zeros_like(x))
        if not isinstance(value, fx.Node):
            return emit(op(x, _like(x, value))) if 0 <= value < n_bits else rest
        amount = _operand(value, node, importer)
        is_within = relax.op.logical_and(
            relax.op.greater_equal(amount, _like(x, 0)), relax.op.less(amount, _like(x, n_bits))
        )
        bounded = emit(relax.op.where(is_within, amount, relax.op.zeros_like(amount)))
        return emit(relax.op.where(is_within, emit(op(x, bounded)), rest))

    return convert


def _convert_comparison(name: str) -> Callable[[Any, Any], relax.Expr]:
    """Return the converter of a comparison with a number; TVM truncates it to a whole number."""
    op = _COMPARISONS[name]

    def convert(node: Any, importer: Any) -> relax.Expr:
        source, number = node.args
        x, dtype = importer.env[source], source.meta["val"].dtype
        # LLVM has no order of truth values.
        is_ordered = dtype != torch.bool or name in ("eq", "ne")
        if not (is_ordered and _holds(dtype, number)):
            dtype = torch.result_type(torch.empty(1, dtype=dtype), number)
            x = importer.block_builder.emit(relax.op.astype(x, _name(dtype)))
        return importer.block_builder.emit(op(x, relax.const(number, _name(dtype))))

    return convert


def _holds(dtype: torch.dtype, number: float) -> bool:
    """Return whether a dtype has a number; floating-point dtypes have all."""
    if dtype.is_floating_point:
        return True
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return low <= number <= high and number == math.floor(number)


def _convert_sign(node: Any, importer: Any) -> relax.Expr:
    """Convert a sign, which is 0 for NaN; that of ONNX is NaN."""
    x = importer.env[node.args[0]]
    if not node.meta["val"].dtype.is_floating_point:
        return importer.block_builder.emit(relax.op.sign(x))
    dtype = str(x.ty.dtype)
    above, below = relax.op.greater(x, _like(x, 0.0)), relax.op.less(x, _like(x, 0.0))
    return importer.block_builder.emit(
        relax.op.astype(above, dtype) - relax.op.astype(below, dtype)
    )


def _convert_angle(node: Any, importer: Any) -> relax.Expr:
    """Convert the angle of a number: pi below 0, and NaN for NaN."""
    if node.args[0].meta["val"].dtype.is_complex:
        raise NotImplementedError("an angle of complex numbers")
    x = _operand(node.args[0], node, importer)
    zero, pi = _like(x, 0.0), _like(x, math.pi)
    angle = relax.op.where(relax.op.less(x, zero), pi, zero)
    if node.args[0].meta["val"].dtype.is_floating_point:
        angle = relax.op.where(relax.op.isnan(x), x, angle)
    return importer.block_builder.emit(angle)


def _convert_heaviside(node: Any, importer: Any) -> relax.Expr:
    """Convert a step, which is 0 for NaN, and another number at 0."""
    x, at_zero = (_operand(value, node, importer) for value in node.args)
    zero = _like(x, 0)
    above = relax.op.astype(relax.op.greater(x, zero), str(x.ty.dtype))
    return importer.block_builder.emit(relax.op.where(relax.op.equal(x, zero), at_zero, above))


def _convert_power(node: Any, importer: Any) -> relax.Expr:
    """Convert a power; torch computes the half by a root, which minus infinity has none of."""
    exponent = node.args[1]
    if exponent not in (0.5, -0.5) or not node.args[0].meta["val"].dtype.is_floating_point:
        return importer._pow(node)
    root = relax.op.sqrt if exponent > 0 else relax.op.rsqrt
    return importer.block_builder.emit(root(importer.env[node.args[0]]))


def _convert_powers(node: Any, importer: Any) -> relax.Expr:
    """Convert powers of floating-point numbers; TVM has none of whole ones."""
    if not node.meta["val"].dtype.is_floating_point:
        raise NotImplementedError("powers of whole numbers")
    return importer._binary_op(relax.op.power, operator.pow)(node)


def _convert_remainder(node: Any, importer: Any) -> relax.Expr:
    """Convert a remainder with the sign of the divisor, of large numbers and infinities too."""
    if not node.meta["val"].dtype.is_floating_point:
        return importer._binary_op(relax.op.floor_mod, operator.mod)(node)
    x, divisor = (_operand(value, node, importer) for value in node.args)
    rest, is_other = _remainder(x, divisor, importer)
    return importer.block_builder.emit(relax.op.where(is_other, rest + divisor, rest))


def _convert_floor_division(node: Any, importer: Any) -> relax.Expr:
    """Convert a quotient that is rounded down, from the remainder as torch computes it."""
    if node.kwargs["rounding_mode"] != "floor":
        return importer._div(node)
    x, divisor = (_operand(value, node, importer) for value in node.args)
    emit = importer.block_builder.emit
    if not node.meta["val"].dtype.is_floating_point:
        return emit(relax.op.floor_divide(x, divisor))
    rest, is_other = _remainder(x, divisor, importer)
    one, zero = _like(rest, 1.0), _like(rest, 0.0)
    quotient = emit((x - rest) / divisor)
    quotient = emit(relax.op.where(is_other, quotient - one, quotient))
    # It is a whole number but for roundings.
    whole = emit(relax.op.floor(quotient))
    is_above = relax.op.greater(quotient - whole, _like(rest, 0.5))
    whole = emit(relax.op.where(is_above, whole + one, whole))
    by_zero = relax.op.equal(divisor, zero)
    return emit(relax.op.where(by_zero, emit(x / divisor), whole))


def _remainder(x: relax.Expr, divisor: relax.Expr, importer: Any) -> tuple[Any, Any]:
    """Return the remainder with the sign of a number, and where the divisor has the other one."""
    emit = importer.block_builder.emit
    rest = emit(relax.op.mod(x, divisor))
    zero = _like(rest, 0.0)
    signs = (emit(relax.op.less(each, zero)) for each in (rest, divisor))
    differ = emit(relax.op.logical_xor(*signs))
    return rest, emit(relax.op.logical_and(relax.op.not_equal(rest, zero), differ))


def _convert_bucketize(node: Any, importer: Any) -> relax.Expr:
    """Convert the number of smaller boundaries, which NaN is above."""
    numbers = importer._bucketize(node)
    if not node.args[0].meta["val"].dtype.is_floating_point:
        return numbers
    last = relax.const(node.args[1].meta["val"].numel(), str(numbers.ty.dtype))
    is_nan = relax.op.isnan(importer.env[node.args[0]])
    return importer.block_builder.emit(relax.op.where(is_nan, last, numbers))


def _convert_choice(node: Any, importer: Any) -> relax.Expr:
    """Convert a choice; its values may be a number and elements of another dtype."""
    condition, *values = node.args
    chosen = (_operand(value, node, importer) for value in values)
    return importer.block_builder.emit(relax.op.where(importer.env[condition], *chosen))


def _convert_sort(node: Any, importer: Any) -> relax.Expr:
    """Convert a sort that keeps the order of equal elements, as all sorts here do."""
    given = {"dim": -1, "descending": False, **operands_of(node, "stable", "dim", "descending")}
    x, axis = importer.env[node.args[0]], given["dim"]
    order = relax.op.argsort(x, axis, given["descending"], dtype="int64")
    order = importer.block_builder.emit(order)
    values = importer.block_builder.emit(relax.op.gather_elements(x, order, axis=axis))
    return importer.block_builder.emit(relax.Tuple([values, order]))


def _convert_median(node: Any, importer: Any) -> relax.Expr:
    """Convert the lower median along an axis and its place, which are those of the first NaN."""
    given = {"keepdim": False, **operands_of(node, "dim", "keepdim")}
    x, axis = importer.env[node.args[0]], given["dim"]
    shape = [int(size) for size in node.args[0].meta["val"].shape]
    if not shape:
        raise NotImplementedError("the median of a scalar")
    emit = importer.block_builder.emit
    order = emit(relax.op.argsort(x, axis, dtype="int64"))
    middle = relax.const(np.array([(shape[axis] - 1) // 2]))
    place = emit(relax.op.take(order, middle, axis))
    if node.args[0].meta["val"].dtype.is_floating_point:
        # Sorts have NaN last, positions of maxima have it first.
        first = emit(relax.op.argmax(x, axis, keepdims=True))
        is_nan = emit(relax.op.isnan(emit(relax.op.gather_elements(x, first, axis=axis))))
        place = emit(relax.op.where(is_nan, first, place))
    results = [emit(relax.op.gather_elements(x, place, axis=axis)), place]
    if not given["keepdim"]:
        results = [emit(relax.op.squeeze(each, [axis])) for each in results]
    return emit(relax.Tuple(results))


def _convert_average_pool(n_axes: int) -> Callable[[Any, Any], relax.Expr]:
    """Return the converter of an average over windows; TVM drops the divisor, as ONNX does."""

    def convert(node: Any, importer: Any) -> relax.Expr:
        given = operands_of(
            node,
            *("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"),
            "divisor_override",
        )
        divisor = given.get("divisor_override")
        if divisor is None:
            return getattr(importer, f"_avg_pool{n_axes}d")(node)
        x, shape = importer.env[node.args[0]], node.args[0].meta["val"].shape
        if not node.meta["val"].dtype.is_floating_point:
            raise NotImplementedError("a divisor of sums of whole numbers")
        window = _each_axis(given["kernel_size"], n_axes)
        step = _each_axis(given.get("stride") or window, n_axes)
        before = _each_axis(given.get("padding", 0), n_axes)
        widths = [0, 0] * (len(shape) - n_axes)
        for axis in range(n_axes):
            n_in, n_out = shape[axis - n_axes], node.meta["val"].shape[axis - n_axes]
            end = (n_out - 1) * step[axis] + window[axis]
            widths += [before[axis], max(end - before[axis] - n_in, 0)]
        padded = importer.block_builder.emit(relax.op.nn.pad(x, widths, "constant", 0.0))
        pool = getattr(importer, f"_avg_pool{n_axes}d_impl")
        average = pool(padded, window, step, 0, False, True)
        return importer.block_builder.emit(average * _like(x, math.prod(window) / divisor))

    return convert


def _each_axis(value: Any, n_axes: int) -> list[int]:
    """Return a value of each axis; one stands for all."""
    values = [*value] if isinstance(value, list | tuple) else [value]
    return values * n_axes if len(values) == 1 else values


def operands_of(node: Any, *names: str) -> dict[str, Any]:
    """Return the operands of a node behind the first one, by name."""
    return {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}


def _operand(value: Any, node: Any, importer: Any, dtype: str = "") -> relax.Expr:
    """Return an operand of a node, or a number, in a dtype, by default that of the result."""
    dtype = dtype or dtype_of(node)
    if not isinstance(value, fx.Node):
        return relax.const(value, dtype)
    operand = importer.env[value]
    if dtype_of(value) == dtype:
        return operand
    return importer.block_builder.emit(relax.op.astype(operand, dtype))


def dtype_of(node: Any) -> str:
    """Return the dtype of the result of a node."""
    return _name(node.meta["val"].dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _like(x: Any, value: float) -> relax.Expr:
    return relax.const(value, str(x.ty.dtype))


#: Converters by name of the operator.
CONVERTERS: dict[str, Callable[[Any, Any], relax.Expr]] = {
    "add.Tensor": _convert_arithmetic(relax.op.add),
    "amax.default": _convert_extreme(relax.op.max),
    "amin.default": _convert_extreme(relax.op.min),
    "angle.default": _convert_angle,
    "avg_pool2d.default": _convert_average_pool(2),
    "avg_pool3d.default": _convert_average_pool(3),
    "bucketize.Tensor": _convert_bucketize,
    "clamp.Tensor": _convert_clamp,
    "clamp.default": _convert_clamp,
    "cumsum.default": _convert_cumulated,
    "div.Tensor": _convert_arithmetic(relax.op.divide),
    "div.Tensor_mode": _convert_floor_division,
    "elu.default": _convert_elu,
    "expm1.default": _convert_expm1,
    "heaviside.default": _convert_heaviside,
    "log1p.default": _convert_log1p,
    "logcumsumexp.default": _convert_log_cumulated,
    "median.dim": _convert_median,
    "mul.Tensor": _convert_arithmetic(relax.op.multiply),
    "pow.Tensor_Scalar": _convert_power,
    "pow.Tensor_Tensor": _convert_powers,
    "prod.default": _convert_multiplied,
    "prod.dim_int": _convert_multiplied,
    "remainder.Scalar": _convert_remainder,
    "remainder.Tensor": _convert_remainder,
    "sign.default": _convert_sign,
    "sort.stable": _convert_sort,
    "sub.Tensor": _convert_arithmetic(relax.op.subtract),
    **{f"{name}.Scalar": _convert_comparison(name) for name in _COMPARISONS},
    **{
        f"{name}.{kind}": _convert_shift(op)
        for op, names in (
            (relax.op.left_shift, ("__lshift__", "bitwise_left_shift")),
            (relax.op.right_shift, ("__rshift__", "bitwise_right_shift")),
        )
        for name in names
        for kind in ("Scalar", "Tensor", "Tensor_Scalar")
    },
    "where.self": _convert_choice,
}
