"""Numbers with a bound on how far a kernel may be from them: a running error analysis.

Values are computed in float64 and, for integers, in int64. The error of a value bounds what any
kernel that computes in the types of the definition may differ by, whatever order it sums in. Each
rounding adds ``u |value|`` (Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.3),
u being the unit round-off of the type, unless the exact value is a number of that type: what is
exact stays exact.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import ml_dtypes
import numpy as np

from tuner.engines.verification.dtypes import is_bool, is_float

Array = np.ndarray[Any, Any]

# Error of a value that could be anything; finite, so that products with 0 stay 0.
UNKNOWN = 1e150


@dataclass(frozen=True)
class Number:
    """An array of values and their errors.

    Attributes:
        value: Values: float64, int64 or bool.
        error: Largest absolute error of each, broadcastable to the values; None if all are exact.
            For bool, 1 where a kernel may come to the other answer.
        dtype: Type in which a kernel holds the values.
    """

    value: Array
    error: Array | None
    dtype: str

    @property
    def errors(self) -> Array:
        """Errors as an array."""
        return np.zeros(()) if self.error is None else self.error


@dataclass(frozen=True)
class Format:
    """Properties of a floating-point type."""

    unit_roundoff: float
    largest: float
    smallest: float
    exact_integers: float


@lru_cache(maxsize=16)
def format_of(dtype: str) -> Format:
    """Return the properties of a floating-point type."""
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    unit = float(info.eps) / 2
    return Format(unit, float(info.max), float(info.smallest_normal), 1.0 / unit)


def held(values: Array, dtype: str) -> Array:
    """Return values in the type that they are computed in here."""
    kind = np.float64 if is_float(dtype) else np.bool_ if is_bool(dtype) else np.int64
    return values.astype(kind, copy=False)


def as_float(values: Array) -> Array:
    """Return values as float64."""
    return values.astype(np.float64, copy=False)


def rounded(value: Array, error: Array | None, dtype: str, n_ulps: float = 1.0) -> Number:
    """Add the rounding of results to a type.

    Args:
        value: Results without rounding, float64.
        error: Their errors so far.
        dtype: Floating-point type that they are rounded to.
        n_ulps: Roundings, each of half a unit in the last place; with more than one, a result is
            not taken for exact because it is a number of the type.
    """
    form = format_of(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = value.astype(dtype).astype(np.float64)
        is_exact = (narrow == value) | np.isnan(value) if n_ulps <= 1.0 else np.zeros((), bool)
        if error is None and is_exact.all():
            return Number(value, None, dtype)
        magnitude = np.abs(value)
        slack = n_ulps * form.unit_roundoff * magnitude + form.smallest
        errors = np.where(is_exact & np.isfinite(value), 0.0, slack)
        errors = errors if error is None else error + np.where(error > 0.0, slack, errors)
        errors = np.where(np.isfinite(value), errors, 0.0 if error is None else error)
        beyond = np.isfinite(value) & (magnitude + errors > form.largest)
        if beyond.any():
            surely = beyond & (magnitude - errors > form.largest * (1 + form.unit_roundoff))
            value = np.where(surely, np.copysign(np.inf, value), value)
            errors = np.where(surely, 0.0, np.where(beyond, UNKNOWN, errors))
    return Number(value, np.where(np.isnan(errors), UNKNOWN, errors), dtype)


def wrapped(value: Array, dtype: str, error: Array | None = None) -> Number:
    """Wrap integers around to a type; wider ones may not overflow, so then nothing is known."""
    bits = int("".join(filter(str.isdigit, dtype)) or 64)
    if bits >= 64:
        return Number(value, error, dtype)
    low = 0 if dtype.startswith("u") else -(1 << (bits - 1))
    overflown = (value < low) | (value >= low + (1 << bits))
    if not overflown.any():
        return Number(value, error, dtype)
    around = (value - low) % (1 << bits) + low
    if bits < 32 or dtype.startswith("u"):
        return Number(around, error, dtype)
    errors = np.zeros(()) if error is None else error
    return Number(around, np.where(overflown, UNKNOWN, errors), dtype)


def constant(value: float, dtype: str) -> Number:
    """Return a constant as a kernel holds it."""
    if is_float(dtype):
        with np.errstate(over="ignore"):
            value = float(np.asarray(value, np.float64).astype(dtype).astype(np.float64))
    return Number(held(np.asarray(value), dtype), None, dtype)


def cast(number: Number, dtype: str) -> Number:
    """Convert to a type; a conversion to an integer truncates."""
    if number.dtype == dtype:
        return number
    if is_float(dtype):
        return rounded(as_float(number.value), number.error, dtype)
    if is_bool(dtype):
        ambiguous = None
        if number.error is not None:
            ambiguous = (np.abs(number.value) <= number.error).astype(np.float64)
        return Number(number.value != 0, ambiguous, dtype)
    if not is_float(number.dtype):
        return wrapped(number.value.astype(np.int64), dtype, number.error)
    with np.errstate(invalid="ignore"):
        whole = monotone(np.trunc, number)
        is_safe = np.abs(whole.value) < 2.0**62
        info = np.iinfo(dtype)
        fits = is_safe & (whole.value >= float(info.min)) & (whole.value <= float(info.max))
        value = np.where(fits, whole.value, 0.0).astype(np.int64)
    if fits.all():
        return Number(value, whole.error, dtype)
    return Number(value, np.where(fits, whole.errors, UNKNOWN), dtype)


def monotone(function: Callable[[Array], Array], number: Number, dtype: str = "") -> Number:
    """Apply a monotone function: the error is that at the ends of the interval."""
    with np.errstate(all="ignore"):
        value = function(number.value)
        if number.error is None:
            return Number(value, None, dtype or number.dtype)
        ends = [function(number.value + number.error), function(number.value - number.error)]
        errors = np.maximum(*(np.abs(end - value) for end in ends))
    errors = np.where(number.error == 0.0, 0.0, errors)
    return Number(value, np.where(np.isnan(errors), UNKNOWN, errors), dtype or number.dtype)


def select(condition: Number, then: Number, otherwise: Number) -> Number:
    """Choose; where a kernel may come to the other choice, the error spans both."""
    value = np.where(condition.value, then.value, otherwise.value)
    if condition.error is None and then.error is None and otherwise.error is None:
        return Number(value, None, then.dtype)
    errors = np.where(condition.value, then.errors, otherwise.errors)
    if condition.error is not None:
        with np.errstate(invalid="ignore"):
            apart = np.abs(as_float(then.value) - as_float(otherwise.value))
        span = apart + np.maximum(then.errors, otherwise.errors)
        span = np.where(np.isnan(span), UNKNOWN, span)
        errors = np.where(condition.error > 0.0, span, errors)
    return Number(value, errors, then.dtype)


def compare(operation: str, a: Number, b: Number) -> Number:
    """Compare; the answer is open where the intervals overlap."""
    values = (a.value, b.value)
    if a.dtype == b.dtype == "uint64":
        values = (a.value.view(np.uint64), b.value.view(np.uint64))
    value = _COMPARISONS[operation](*values)
    if a.error is None and b.error is None:
        return Number(value, None, "bool")
    with np.errstate(invalid="ignore"):
        slack = a.errors + b.errors
        is_open = (np.abs(as_float(a.value) - as_float(b.value)) <= slack) & (slack > 0.0)
    return Number(value, is_open.astype(np.float64), "bool")


def apply(  # noqa: PLR0911  one for each kind of operation
    operation: str, args: tuple[Number, ...], dtype: str
) -> Number:
    """Apply an operation by its name in TIR.

    Raises:
        KeyError: If the operation is unknown.
    """
    if operation == "Cast":
        return cast(args[0], dtype)
    if operation == "Select":
        return select(*args)
    if operation in _COMPARISONS:
        return compare(operation, *args)
    if operation in _LOGIC:
        value = _LOGIC[operation](*(number.value for number in args))
        if all(number.error is None for number in args):
            return Number(value, None, "bool")
        return Number(value, _largest(number.errors for number in args), "bool")
    if operation in _PREDICATES:
        open_ = None if args[0].error is None else (args[0].error >= UNKNOWN).astype(np.float64)
        return Number(_PREDICATES[operation](as_float(args[0].value)), open_, "bool")
    if is_float(dtype):
        if operation == "reinterpret":
            return _reinterpreted(args[0], dtype)
        return _FLOAT[operation](dtype, *args)
    return _integer(operation, args, dtype)


def _largest(arrays: Iterable[Array]) -> Array:
    return reduce(np.maximum, arrays)


def _add(dtype: str, a: Number, b: Number) -> Number:
    with np.errstate(all="ignore"):
        return rounded(a.value + b.value, _sum_of_errors(a, b), dtype)


def _subtract(dtype: str, a: Number, b: Number) -> Number:
    with np.errstate(all="ignore"):
        return rounded(a.value - b.value, _sum_of_errors(a, b), dtype)


def _sum_of_errors(a: Number, b: Number) -> Array | None:
    return None if a.error is None and b.error is None else a.errors + b.errors


def product_error(a: Number, b: Number) -> Array | None:
    """Return the error of a product that is not rounded."""
    if a.error is None and b.error is None:
        return None
    with np.errstate(all="ignore"):
        errors = np.abs(a.value) * b.errors + a.errors * np.abs(b.value) + a.errors * b.errors
    return np.where(np.isnan(errors), UNKNOWN, errors)


def _multiply(dtype: str, a: Number, b: Number) -> Number:
    with np.errstate(all="ignore"):
        return rounded(a.value * b.value, product_error(a, b), dtype)


def _divide(dtype: str, a: Number, b: Number) -> Number:
    # Fast division multiplies by a rounded reciprocal, which is exact for powers of two only.
    with np.errstate(all="ignore"):
        value = a.value / b.value
        is_power = np.abs(np.frexp(b.value)[0]) == 0.5
        n_ulps = 1.0 if is_power.all() or not np.any(a.value) else 6.0
        if a.error is None and b.error is None:
            return rounded(value, None, dtype, n_ulps)
        least = np.abs(b.value) - b.errors
        errors = (a.errors + np.abs(value) * b.errors) / least
        errors = np.where((least > 0.0) & ~np.isnan(errors), errors, UNKNOWN)
    return rounded(value, errors, dtype, n_ulps)


def _extreme(choose: Callable[[Array, Array], Array]) -> Callable[..., Number]:
    def extreme(dtype: str, a: Number, b: Number) -> Number:
        with np.errstate(invalid="ignore"):
            value = choose(a.value, b.value)
        if a.error is None and b.error is None:
            return Number(value, None, dtype)
        errors = np.where(np.isnan(b.value), b.errors, np.maximum(a.errors, b.errors))
        return Number(value, np.where(np.isnan(a.value), a.errors, errors), dtype)

    return extreme


def _roundings(dtype: str) -> float:
    """Return the error of a library function in units of ``u |value|``.

    Polynomials and CUDA's fast functions err by several units of float32. Narrower types are
    computed in float32, or by a formula of a few operations.
    """
    return 16.0 if format_of(dtype).unit_roundoff <= 2.0**-24 else 6.0


def _function(
    function: Callable[[Array], Array], *, is_absolute: bool = False
) -> Callable[..., Number]:
    """Return a monotone function that a kernel approximates.

    Args:
        function: The function in float64.
        is_absolute: True if the error does not vanish with the value.
    """

    def approximate(dtype: str, a: Number) -> Number:
        exact = monotone(function, a, dtype)
        errors = exact.errors
        if is_absolute:
            errors = errors + _roundings(dtype) * format_of(dtype).unit_roundoff
        errors = np.broadcast_to(errors, exact.value.shape)
        return rounded(exact.value, errors, dtype, _roundings(dtype))

    return approximate


def _whole(function: Callable[[Array], Array]) -> Callable[..., Number]:
    def exact(dtype: str, a: Number) -> Number:
        return monotone(function, a, dtype)

    return exact


def _exponential(function: Callable[[Array], Array]) -> Callable[..., Number]:
    """Return an exponential; fast ones lose accuracy with the size of their argument."""

    def approximate(dtype: str, a: Number) -> Number:
        unit = format_of(dtype).unit_roundoff
        exact = monotone(function, a, dtype)
        with np.errstate(all="ignore"):
            # CUDA: 2 + 1.16 |x| units in the last place.
            errors = exact.errors + 4.0 * min(unit, 2.0**-24) * np.abs(a.value) * exact.value
        errors = np.where(np.isnan(errors), exact.errors, errors)
        return rounded(exact.value, errors, dtype, _roundings(dtype))

    return approximate


def _periodic(function: Callable[[Array], Array]) -> Callable[..., Number]:
    def approximate(dtype: str, a: Number) -> Number:
        with np.errstate(all="ignore"):
            value = function(a.value)
            unit = format_of(dtype).unit_roundoff
            errors = a.errors + _roundings(dtype) * unit * (1.0 + np.abs(a.value))
        return rounded(value, np.broadcast_to(errors, value.shape), dtype, _roundings(dtype))

    return approximate


def _power(dtype: str, a: Number, b: Number) -> Number:
    with np.errstate(all="ignore"):
        value = np.power(a.value, b.value)
        errors: Array = np.zeros(value.shape)
        if a.error is not None or b.error is not None:
            ends = [
                np.abs(np.power(a.value + i * a.errors, b.value + j * b.errors) - value)
                for i in (-1, 1)
                for j in (-1, 1)
            ]
            errors = _largest(ends)
            errors = np.where(np.isnan(errors), UNKNOWN, errors)
        # A power is an exponential of a product, whose rounding is multiplied by its size.
        size = np.abs(b.value * np.log(np.abs(a.value)))
        growth = np.where(np.isfinite(size), size, 0.0) + np.abs(b.value)
        unit = format_of(dtype).unit_roundoff
        errors = errors + _roundings(dtype) * unit * growth * np.abs(value)
        errors = np.where(np.isnan(errors), 0.0, errors)
    return rounded(value, errors, dtype, _roundings(dtype))


def _abs(dtype: str, a: Number) -> Number:
    return Number(np.abs(a.value), a.error, dtype)


def _fast_tanh(dtype: str, a: Number) -> Number:
    # PTX tanh.approx.f32, which CUDA's fast mathematics use: relative error 2**-11.
    number = _function(np.tanh, is_absolute=True)(dtype, a)
    return Number(number.value, number.errors + 2.0**-10 * np.abs(number.value), dtype)


def _logarithm(function: Callable[[Array], Array]) -> Callable[..., Number]:
    return _function(function, is_absolute=True)


def _special(name: str) -> Callable[[Array], Array]:
    """Return a function of SciPy, whose import would take a seventh of the start of a worker."""

    def call(values: Array) -> Array:
        from scipy import special

        result: Array = getattr(special, name)(values)
        return result

    return call


def _two(function: Callable[[Array, Array], Array]) -> Callable[..., Number]:
    """Return a function of two exact arguments; of others nothing is known."""

    def apply_to(dtype: str, a: Number, b: Number) -> Number:
        with np.errstate(all="ignore"):
            value = function(a.value, b.value)
        if a.error is None and b.error is None:
            return rounded(value, None, dtype, _roundings(dtype))
        errors = np.where(_sum_of_errors(a, b) == 0.0, 0.0, UNKNOWN)
        return rounded(value, np.broadcast_to(errors, value.shape), dtype, _roundings(dtype))

    return apply_to


def _round(dtype: str, a: Number) -> Number:
    """Round to whole numbers; versions of TVM and devices differ in ties."""
    whole = monotone(np.rint, a, dtype)
    with np.errstate(invalid="ignore"):
        ties = np.abs(a.value - np.trunc(a.value)) == 0.5
    if not ties.any():
        return whole
    return Number(whole.value, np.where(ties, whole.errors + 1.0, whole.errors), dtype)


def _remainder(dtype: str, a: Number, b: Number) -> Number:
    with np.errstate(all="ignore"):
        value = np.fmod(a.value, b.value)
    errors = None
    if a.error is not None or b.error is not None:
        errors = np.where(_sum_of_errors(a, b) == 0.0, 0.0, UNKNOWN)
    return rounded(value, errors, dtype)


def _reinterpreted(number: Number, dtype: str) -> Number:
    held_as = number.value.astype(np.dtype(number.dtype))
    value = held(held_as.view(np.dtype(dtype)), dtype)
    if number.error is None:
        return Number(value, None, dtype)
    return Number(value, np.where(number.error == 0.0, 0.0, UNKNOWN), dtype)


def _integer(operation: str, args: tuple[Number, ...], dtype: str) -> Number:
    """Apply an operation on integers exactly; an error of an argument leaves the result open."""
    if operation == "reinterpret":
        return _reinterpreted(args[0], dtype)
    if is_bool(dtype):
        dtype = "int64"
    # Those of 64 bits without a sign are held as int64 of the same bits.
    held_as = np.uint64 if args[0].dtype == "uint64" else np.int64
    values = tuple(number.value.astype(np.int64).view(held_as) for number in args)
    with np.errstate(all="ignore"):
        result = wrapped(np.asarray(_INTEGER[operation](*values)).astype(np.int64), dtype)
    errors = [number.error for number in args if number.error is not None]
    if not errors:
        return result
    if operation in ("Add", "Sub"):
        return Number(result.value, reduce(np.add, errors) + result.errors, dtype)
    if operation in ("Min", "Max"):
        return Number(result.value, _largest(number.errors for number in args), dtype)
    is_open = _largest(number.errors for number in args) > 0.0
    return Number(result.value, np.where(is_open, UNKNOWN, result.errors), dtype)


def _truncated_quotient(a: Array, b: Array) -> Array:
    quotient = np.abs(a) // np.maximum(np.abs(b), 1)
    return np.asarray(np.sign(a) * np.sign(b) * quotient)


def _floored(operation: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def divide(a: Array, b: Array) -> Array:
        return operation(a, np.where(b == 0, 1, b))

    return divide


_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
_LOGIC: dict[str, Callable[..., Array]] = {
    "And": np.logical_and,
    "Or": np.logical_or,
    "Not": np.logical_not,
}
_PREDICATES: dict[str, Callable[[Array], Array]] = {
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
}
_FLOAT: dict[str, Callable[..., Number]] = {
    "Add": _add,
    "Sub": _subtract,
    "Mul": _multiply,
    "Div": _divide,
    "Mod": _remainder,
    "fmod": _remainder,
    "Min": _extreme(np.minimum),
    "Max": _extreme(np.maximum),
    "fabs": _abs,
    "abs": _abs,
    "floor": _whole(np.floor),
    "ceil": _whole(np.ceil),
    "trunc": _whole(np.trunc),
    "round": _round,
    "nearbyint": _round,
    "exp": _exponential(np.exp),
    "exp2": _exponential(np.exp2),
    "exp10": _exponential(lambda values: np.power(10.0, values)),
    "log": _logarithm(np.log),
    "log2": _logarithm(np.log2),
    "log10": _logarithm(np.log10),
    "log1p": _logarithm(np.log1p),
    "sqrt": _function(np.sqrt),
    "rsqrt": _function(lambda values: 1.0 / np.sqrt(values)),
    "tanh": _function(np.tanh, is_absolute=True),
    "fast_tanh": _fast_tanh,
    "sigmoid": _function(_special("expit")),
    "erf": _function(_special("erf"), is_absolute=True),
    "atan": _function(np.arctan, is_absolute=True),
    "asin": _function(np.arcsin, is_absolute=True),
    "acos": _function(np.arccos, is_absolute=True),
    "sinh": _function(np.sinh, is_absolute=True),
    "asinh": _function(np.arcsinh, is_absolute=True),
    "acosh": _function(np.arccosh, is_absolute=True),
    "atanh": _function(np.arctanh, is_absolute=True),
    "sin": _periodic(np.sin),
    "cos": _periodic(np.cos),
    "pow": _power,
    "atan2": _two(np.arctan2),
    "hypot": _two(np.hypot),
    "copysign": _two(np.copysign),
}
_INTEGER: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _truncated_quotient,
    "Mod": lambda a, b: a - b * _truncated_quotient(a, b),
    "FloorDiv": _floored(np.floor_divide),
    "FloorMod": _floored(np.mod),
    "Min": np.minimum,
    "Max": np.maximum,
    "abs": np.abs,
    "fabs": np.abs,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "LShift": np.left_shift,
    "RShift": np.right_shift,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_not": np.invert,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
}


def sum_error(
    total: Array, magnitude: Array, n_terms: int, dtype: str, *, independent: bool = True
) -> Array:
    """Bound the rounding errors of sums of exact terms in any order.

    Rounding errors of a sum of n terms grow as sqrt(n) when they are independent (Higham, section
    4.2). They grow as n where many terms are equal, and where the sum is so large that each term is
    rounded alike.

    Args:
        magnitude: Sums of the absolute values of the terms.
        dtype: Type of the sum.
        independent: False if many terms may be equal.
    """
    form = format_of(dtype)
    typical = min(2.0 * math.sqrt(n_terms) + 1.0, float(n_terms))
    stalls = 4.0 * form.unit_roundoff * n_terms * np.abs(total) > magnitude
    factor = np.where(stalls, float(n_terms), typical) if independent else float(n_terms)
    return np.asarray(factor * form.unit_roundoff * magnitude)
