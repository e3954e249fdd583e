"""Elementary functions of float32 as polynomials, which LLVM compiles to vector instructions.

TVM's code generator for CPUs calls libm once for every element. The functions here replace those
calls after vectorisation, so that a vector of arguments stays one. The coefficients are fits of
least squares, weighted until the largest relative error is the smallest (Lawson's algorithm).
Infinities and NaN are those of libm.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

_LN2_HIGH = 355.0 / 512.0  # exact in float32 times any exponent
_LN2_LOW = math.log(2.0) - _LN2_HIGH
_LOG10_2_HIGH = 1233.0 / 4096.0
# exp is finite and not subnormal in float32 from the one to the other.
_MIN_EXP, _MAX_EXP = -87.33654022216797, 88.72283172607422
# Beyond these, exp times a power of two overflows or is zero in float32.
_MAX_SCALED_EXP, _MIN_SCALED_EXP = 90.0, -104.0
# 1 / (1 + exp(x)) is not subnormal below it, and tanh is 1 in float32 beyond.
_MAX_SIGMOID, _MAX_TANH = 87.33, 9.5
_MAX_EXP2, _MIN_EXP2 = 129.0, -151.0

# exp(r) = 1 + r + r^2 q(r), |r| <= ln(2)/2; 3.1e-9.
_EXP = (
    0.49999993447560276,
    0.16666520629439233,
    0.041668388092688496,
    0.00836871709086083,
    0.0013814596382746118,
)
# log(1 + f) = f - f^2/2 + f^3 q(f), sqrt(1/2) <= 1 + f < sqrt(2); 7.5e-10.
_LOG = (
    0.33333312602802656,
    -0.25000009603654033,
    0.20002118732212903,
    -0.16667995667114224,
    0.14219550908081863,
    -0.12405591416731454,
    0.11888174598846948,
    -0.11675641305639738,
    0.06746601329523516,
)
# There, the polynomial is the logarithm of 1 + f without a sum that rounds.
_MIN_LOG1P, _MAX_LOG1P = math.sqrt(0.5) - 1.0, math.sqrt(2.0) - 1.0
# tanh(x) = x + x^3 q(x^2), |x| <= 0.625; 4.4e-9.
_TANH = (
    -0.3333328194278407,
    0.1333144221503868,
    -0.05373971627959612,
    0.02063909065773972,
    -0.005704990410221897,
)
_MAX_TANH_POLYNOMIAL = 0.625
# erf(x) = x p(x^2) / q(x^2), |x| <= 3.925, where erf is 1 in float32 beyond; 1.9e-8.
_ERF_P = (
    1.1283791458750325,
    0.1905857776101036,
    0.052768110431532664,
    0.00377217487656706,
    0.00028482973591481894,
    2.0460171427280897e-06,
)
_ERF_Q = (
    1.0,
    0.5022349800860663,
    0.11417930520298257,
    0.014982446129281082,
    0.0011637570289890638,
    3.804694955785909e-05,
)
_MAX_ERF = 3.925

# sinh(x) = x + x^3 q(x^2), |x| <= 1; the Taylor series, 2.5e-8.
_SINH = tuple(1.0 / math.factorial(n) for n in (3, 5, 7, 9))
_MAX_SINH_POLYNOMIAL = 1.0
# The powers are computed in float64: log2(m) = s p(s^2) with s = (m - 1) / (m + 1), 2e-12, and
# exp(r) up to the power 8 of r, 2e-10, both Taylor series.
_LOG2_SERIES = tuple(2.0 / math.log(2.0) / n for n in range(1, 15, 2))
_EXP_SERIES = tuple(1.0 / math.factorial(n) for n in range(9))
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_MAX_POWER = 160.0  # beyond 2^160 and 2^-160, a power is infinite or zero in float32

# pi / 2 in two parts: the first times a number below 2^20 is exact in float64.
_HALF_PI_HIGH = float.fromhex("0x1.921fb544p+0")
_HALF_PI_LOW = 6.077100506506192e-11
# Float32 numbers from there on lie further apart than a period of the sine.
_MAX_ANGLE = 2.0**30
# sin(r) = r + r^3 q(r^2) and cos(r) = 1 - r^2/2 + r^4 q(r^2), |r| <= pi/4; sinf of Cephes.
_SIN = (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
_COS = (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)
# asin(x) = x + x^3 q(x^2), |x| <= 0.5; asinf of Cephes.
_ASIN = (1.6666752422e-1, 7.4953002686e-2, 4.5470025998e-2, 2.4181311049e-2, 4.2163199048e-2)
# asinh(x) = x + x^3 q(x^2), |x| <= 0.5; asinhf of Cephes.
_ASINH = (-1.6666288134e-1, 7.4847586088e-2, -4.2699340972e-2, 2.0122003309e-2)
# acosh(1 + z) = sqrt(z) q(z), z <= 0.5; acoshf of Cephes.
_ACOSH = (
    *(1.4142135263e0, -1.1784741703e-1, 2.6454905019e-2, -7.5272886713e-3),
    1.7596881071e-3,
)
# atanh(x) = x + x^3 q(x^2), |x| <= 0.5; atanhf of Cephes.
_ATANH = (
    *(3.33337300303e-1, 1.99782164500e-1, 1.46691431730e-1, 8.24370301058e-2),
    1.81740078349e-1,
)
# The square of a number from there on is that number's plus 1, and no infinity below.
_LARGE = 1e9
# atan(x) = x + x^3 q(x^2), |x| <= tan(pi/8); atanf of Cephes.
_ATAN = (-3.33329491539e-1, 1.99777106478e-1, -1.38776856032e-1, 8.05374449538e-2)
_TAN_PI_8, _TAN_3_PI_8 = math.sqrt(2.0) - 1.0, math.sqrt(2.0) + 1.0

_Function = Callable[..., Any]


def exp(x: Any) -> Any:
    """Return e to the power of x; 0 where it would be subnormal."""
    like = _constants(x)
    result = tirx.Select(x < like(_MIN_EXP), like(0.0), _exp_in_range(x))
    return tirx.Select(x > like(_MAX_EXP), like(math.inf), result)


def _exp_in_range(x: Any) -> Any:
    """Return e to the power of x, which is at least ``_MIN_EXP`` and at most ``_MAX_EXP``."""
    like, whole = _constants(x), type_like(x, "int32")
    n = tirx.round(x * like(1.0 / math.log(2.0)))
    power = _exp_near_zero(x, n)
    exponent = tirx.shift_left(tirx.Cast(whole, n), tirx.const(23, whole))
    return tirx.reinterpret(dtype_of(x), tirx.reinterpret(whole, power) + exponent)


def _exp_near_zero(x: Any, n: Any) -> Any:
    """Return e to the power of x minus n times the logarithm of 2."""
    like = _constants(x)
    r = x - n * like(_LN2_HIGH) - n * like(_LN2_LOW)
    return r * r * _polynomial(r, _EXP) + r + like(1.0)


def _exp_times(x: Any, exponent: float) -> Any:
    """Return e to the power of x, times 2 to the power of an exponent."""
    like = _constants(x)
    clipped = tirx.min(tirx.max(x, like(_MIN_SCALED_EXP)), like(_MAX_SCALED_EXP))
    n = tirx.round(clipped * like(1.0 / math.log(2.0)))
    return _keep_nan(x, _scale(_exp_near_zero(clipped, n), n + like(exponent)))


def exp2(x: Any) -> Any:
    """Return 2 to the power of x."""
    like = _constants(x)
    clipped = tirx.min(tirx.max(x, like(_MIN_EXP2)), like(_MAX_EXP2))
    n = tirx.round(clipped)
    r = (clipped - n) * like(math.log(2.0))
    return _keep_nan(x, _scale(r * r * _polynomial(r, _EXP) + r + like(1.0), n))


def log(x: Any) -> Any:
    """Return the natural logarithm of x."""
    return _logarithm(x, _LN2_HIGH, _LN2_LOW, 1.0)


def log2(x: Any) -> Any:
    """Return the logarithm of x to the base 2."""
    return _logarithm(x, 1.0, 0.0, 1.0 / math.log(2.0))


def log10(x: Any) -> Any:
    """Return the logarithm of x to the base 10."""
    low = math.log10(2.0) - _LOG10_2_HIGH
    return _logarithm(x, _LOG10_2_HIGH, low, 1.0 / math.log(10.0))


def _logarithm(x: Any, high: float, low: float, scale: float) -> Any:
    """Return a logarithm: of 2 in two parts, and the natural one of the rest times a scale."""
    like = _constants(x)
    # Subnormal numbers are scaled by 2^23 first, which is subtracted from the exponent.
    is_small = x < like(2.0**-126)
    normal = tirx.Select(is_small, x * like(2.0**23), x)
    whole = type_like(x, "int32")
    bits = tirx.reinterpret(whole, normal) - tirx.const(0x3F3504F3, whole)  # sqrt(1/2)
    exponent = tirx.Cast(dtype_of(x), tirx.shift_right(bits, tirx.const(23, whole)))
    exponent = exponent - tirx.Select(is_small, like(23.0), like(0.0))
    mantissa_bits = tirx.bitwise_and(bits, tirx.const(0x7FFFFF, whole))
    f = tirx.reinterpret(dtype_of(x), mantissa_bits + tirx.const(0x3F3504F3, whole)) - like(1.0)
    tail = f * f * f * _polynomial(f, _LOG) - like(0.5) * f * f
    finite = exponent * like(high) + ((f + tail) * like(scale) + exponent * like(low))
    result = tirx.Select(x < like(math.inf), finite, x)
    result = tirx.Select(tirx.EQ(x, like(0.0)), like(-math.inf), result)
    return _keep_nan(x, tirx.Select(x < like(0.0), like(math.nan), result))


def rsqrt(x: Any) -> Any:
    """Return 1 / sqrt(x)."""
    return _constants(x)(1.0) / tirx.sqrt(x)


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent of x."""
    like = _constants(x)
    magnitude = tirx.abs(x)
    z = x * x
    near = magnitude + magnitude * z * _polynomial(z, _TANH)
    clipped = _at_most(magnitude, _MAX_TANH)
    far = like(1.0) - like(2.0) / (_exp_in_range(clipped + clipped) + like(1.0))
    return _with_sign(x, tirx.Select(magnitude < like(_MAX_TANH_POLYNOMIAL), near, far))


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)); 0 where it would be subnormal."""
    like = _constants(x)
    clipped = _at_least(_at_most(-x, _MAX_SIGMOID), -_MAX_SIGMOID)
    value = like(1.0) / (_exp_in_range(clipped) + like(1.0))
    return tirx.Select(x < like(-_MAX_SIGMOID), like(0.0), value)


def erf(x: Any) -> Any:
    """Return the error function of x."""
    clipped = _at_least(_at_most(x, _MAX_ERF), -_MAX_ERF)
    z = clipped * clipped
    value = clipped * _polynomial(z, _ERF_P) / _polynomial(z, _ERF_Q)
    return _at_least(_at_most(value, 1.0), -1.0)


def _at_most(x: Any, limit: float) -> Any:
    """Return the lesser of x and a limit; NaN stays, because LLVM compares ``limit < x``.

    A selection would hold x twice, and TVM simplifies every condition: lowering a call of erf would
    take 54 ms instead of 0.2.
    """
    return tirx.min(_constants(x)(limit), x)


def _at_least(x: Any, limit: float) -> Any:
    """Return the greater of x and a limit; NaN stays, as in :func:`_at_most`."""
    return tirx.max(_constants(x)(limit), x)


def sinh(x: Any) -> Any:
    """Return the hyperbolic sine of x."""
    like = _constants(x)
    magnitude = tirx.Select(x < like(0.0), -x, x)
    z = x * x
    near = x + x * z * _polynomial(z, _SINH)
    far = _exp_times(magnitude, -1.0) - like(0.5) * exp(-magnitude)
    far = tirx.Select(x < like(0.0), -far, far)
    return tirx.Select(magnitude < like(_MAX_SINH_POLYNOMIAL), near, far)


def cosh(x: Any) -> Any:
    """Return the hyperbolic cosine of x."""
    like = _constants(x)
    magnitude = tirx.Select(x < like(0.0), -x, x)
    return _exp_times(magnitude, -1.0) + like(0.5) * exp(-magnitude)


def sin(x: Any) -> Any:
    """Return the sine of x; that of 2^30 with its sign beyond 2^30."""
    r, quarters = _quarter_turns(x)
    return _finite_only(x, _with_sign(x, _sine_after(r, quarters)))


def cos(x: Any) -> Any:
    """Return the cosine of x; that of 2^30 beyond 2^30."""
    r, quarters = _quarter_turns(x)
    return _finite_only(x, _sine_after(r, quarters + tirx.const(1, dtype_of(quarters))))


def tan(x: Any) -> Any:
    """Return the tangent of x; that of 2^30 with its sign beyond 2^30."""
    r, quarters = _quarter_turns(x)
    further = quarters + tirx.const(1, dtype_of(quarters))
    return _finite_only(x, _with_sign(x, _sine_after(r, quarters) / _sine_after(r, further)))


def _quarter_turns(x: Any) -> tuple[Any, Any]:
    """Return abs(x) less its nearest multiple of pi / 2, computed in float64, and that multiple."""
    wide = type_like(x, "float64")
    angle = tirx.Cast(wide, _at_most(tirx.abs(x), _MAX_ANGLE))
    n = tirx.round(angle * tirx.const(2.0 / math.pi, wide))
    rest = angle - n * tirx.const(_HALF_PI_HIGH, wide) - n * tirx.const(_HALF_PI_LOW, wide)
    return tirx.Cast(dtype_of(x), rest), tirx.Cast(type_like(x, "int32"), n)


def _sine_after(r: Any, quarters: Any) -> Any:
    """Return the sine of r, at most pi / 4, plus a number of quarters of a turn."""
    like, whole = _constants(r), dtype_of(quarters)
    z = r * r
    sine = r + r * z * _polynomial(z, _SIN)
    cosine = like(1.0) - like(0.5) * z + z * z * _polynomial(z, _COS)
    zero = tirx.const(0, whole)
    is_odd = tirx.NE(tirx.bitwise_and(quarters, tirx.const(1, whole)), zero)
    is_negative = tirx.NE(tirx.bitwise_and(quarters, tirx.const(2, whole)), zero)
    value = tirx.Select(is_odd, cosine, sine)
    return tirx.Select(is_negative, -value, value)


def _with_sign(x: Any, result: Any) -> Any:
    """Return a result, negated if x is negative or -0.0."""
    whole = type_like(x, "int32")
    sign = tirx.bitwise_and(tirx.reinterpret(whole, x), tirx.const(-(2**31), whole))
    return tirx.reinterpret(dtype_of(x), tirx.bitwise_xor(tirx.reinterpret(whole, result), sign))


def _finite_only(x: Any, result: Any) -> Any:
    like = _constants(x)
    return tirx.Select(tirx.abs(x) < like(math.inf), result, like(math.nan))


def asin(x: Any) -> Any:
    """Return the arc sine of x; NaN outside of [-1, 1]."""
    like = _constants(x)
    magnitude = tirx.abs(x)
    far = like(math.pi / 2.0) - _twice_asin_of_root(like(1.0) - magnitude)
    far = tirx.Select(x < like(0.0), -far, far)
    return tirx.Select(magnitude < like(0.5), _asin_near_zero(x), far)


def acos(x: Any) -> Any:
    """Return the arc cosine of x; NaN outside of [-1, 1]."""
    like = _constants(x)
    magnitude = tirx.abs(x)
    far = _twice_asin_of_root(like(1.0) - magnitude)
    far = tirx.Select(x < like(0.0), like(math.pi) - far, far)
    near = like(math.pi / 2.0) - _asin_near_zero(x)
    return tirx.Select(magnitude < like(0.5), near, far)


def _asin_near_zero(x: Any) -> Any:
    z = x * x
    return x + x * z * _polynomial(z, _ASIN)


def _twice_asin_of_root(rest: Any) -> Any:
    """Return the arc cosine of 1 - rest, which is 2 asin(sqrt(rest / 2))."""
    like = _constants(rest)
    return like(2.0) * _asin_near_zero(tirx.sqrt(like(0.5) * rest))


def atan(x: Any) -> Any:
    """Return the arc tangent of x."""
    like = _constants(x)
    magnitude = tirx.abs(x)
    is_far, is_near = magnitude > like(_TAN_3_PI_8), magnitude < like(_TAN_PI_8)
    top = tirx.Select(is_near, magnitude, magnitude - like(1.0))
    bottom = tirx.Select(is_near, like(1.0), magnitude + like(1.0))
    top = tirx.Select(is_far, like(-1.0), top)
    ratio = top / tirx.Select(is_far, magnitude, bottom)
    z = ratio * ratio
    angle = tirx.Select(is_near, like(0.0), like(math.pi / 4.0))
    angle = tirx.Select(is_far, like(math.pi / 2.0), angle)
    return _with_sign(x, angle + (ratio + ratio * z * _polynomial(z, _ATAN)))


def asinh(x: Any) -> Any:
    """Return the inverse hyperbolic sine of x."""
    like = _constants(x)
    magnitude = tirx.abs(x)
    z = x * x
    near = magnitude + magnitude * z * _polynomial(z, _ASINH)
    far = _log_of_sum(magnitude, z + like(1.0))
    return _with_sign(x, tirx.Select(magnitude < like(0.5), near, far))


def acosh(x: Any) -> Any:
    """Return the inverse hyperbolic cosine of x; NaN below 1."""
    like = _constants(x)
    beyond = x - like(1.0)
    near = tirx.sqrt(beyond) * _polynomial(beyond, _ACOSH)
    far = _log_of_sum(x, beyond * (x + like(1.0)))
    return tirx.Select(x < like(1.5), near, far)


def _log_of_sum(x: Any, square: Any) -> Any:
    """Return the logarithm of x plus the root of a square near its own, which may be infinite."""
    like = _constants(x)
    is_large = x > like(_LARGE)
    total = x + tirx.Select(is_large, like(0.0), tirx.sqrt(square))
    return log(total) + tirx.Select(is_large, like(math.log(2.0)), like(0.0))


def atanh(x: Any) -> Any:
    """Return the inverse hyperbolic tangent of x; NaN outside of [-1, 1]."""
    like = _constants(x)
    magnitude = tirx.abs(x)
    z = x * x
    near = magnitude + magnitude * z * _polynomial(z, _ATANH)
    far = like(0.5) * log((like(1.0) + magnitude) / (like(1.0) - magnitude))
    return _with_sign(x, tirx.Select(magnitude < like(0.5), near, far))


def log1p(x: Any) -> Any:
    """Return the natural logarithm of 1 + x."""
    like = _constants(x)
    near = x + x * x * (x * _polynomial(x, _LOG) - like(0.5))
    is_near = tirx.And(x > like(_MIN_LOG1P), x < like(_MAX_LOG1P))
    return tirx.Select(is_near, near, log(x + like(1.0)))


def pow(x: Any, y: Any) -> Any:  # noqa: A001  the name of the intrinsic
    """Return x to the power of y, with the special values of C's ``pow``."""
    like, infinity = _constants(x), tirx.const(math.inf, type_like(x, "float64"))
    magnitude = tirx.Select(x < like(0.0), -x, x)
    logarithm = _log2_of_float64(tirx.Cast(type_like(x, "float64"), magnitude))
    logarithm = tirx.Select(tirx.EQ(magnitude, like(0.0)), -infinity, logarithm)
    logarithm = tirx.Select(tirx.EQ(magnitude, like(math.inf)), infinity, logarithm)
    power = _exp2_of_float64(tirx.Cast(type_like(x, "float64"), y) * logarithm)
    result = _keep_nan(y, _keep_nan(x, tirx.Cast(dtype_of(x), power)))
    result = tirx.Select(tirx.EQ(magnitude, like(1.0)), _keep_nan(y, like(1.0)), result)
    whole = tirx.trunc(y)
    half = y * like(0.5)
    is_odd = tirx.And(tirx.EQ(whole, y), tirx.NE(tirx.trunc(half), half))
    sign_bit = tirx.reinterpret(type_like(x, "int32"), x) < tirx.const(0, type_like(x, "int32"))
    result = tirx.Select(tirx.And(is_odd, sign_bit), -result, result)
    # A negative number has real powers for whole exponents only; an infinity has them all.
    is_negative = tirx.And(x < like(0.0), x > like(-math.inf))
    has_none = tirx.And(is_negative, tirx.NE(whole, y))
    result = tirx.Select(has_none, like(math.nan), result)
    always_one = tirx.Or(tirx.EQ(y, like(0.0)), tirx.EQ(x, like(1.0)))
    return tirx.Select(always_one, like(1.0), result)


def _log2_of_float64(x: Any) -> Any:
    """Return the logarithm to the base 2 of a positive, normal x."""
    like, wide = _constants(x), type_like(x, "int64")
    bits = tirx.reinterpret(wide, x) - tirx.const(_SQRT_HALF_BITS, wide)
    exponent = tirx.Cast(type_like(x, "int32"), tirx.shift_right(bits, tirx.const(52, wide)))
    mantissa_bits = tirx.bitwise_and(bits, tirx.const(2**52 - 1, wide))
    mantissa = tirx.reinterpret(dtype_of(x), mantissa_bits + tirx.const(_SQRT_HALF_BITS, wide))
    s = (mantissa - like(1.0)) / (mantissa + like(1.0))
    return tirx.Cast(dtype_of(x), exponent) + s * _polynomial(s * s, _LOG2_SERIES)


def _exp2_of_float64(x: Any) -> Any:
    like, wide = _constants(x), type_like(x, "int64")
    clipped = tirx.min(tirx.max(x, like(-_MAX_POWER)), like(_MAX_POWER))
    n = tirx.round(clipped)
    fraction = _polynomial((clipped - n) * like(math.log(2.0)), _EXP_SERIES)
    biased = tirx.Cast(wide, tirx.Cast(type_like(x, "int32"), n)) + tirx.const(1023, wide)
    return fraction * tirx.reinterpret(dtype_of(x), tirx.shift_left(biased, tirx.const(52, wide)))


def _scale(x: Any, n: Any) -> Any:
    """Return x times 2 to the power of n, in two steps: one may exceed the range of exponents."""
    whole = type_like(x, "int32")
    exponent = tirx.Cast(whole, n)
    half = tirx.shift_right(exponent, tirx.const(1, whole))
    return x * _power_of_two(x, half) * _power_of_two(x, exponent - half)


def _power_of_two(x: Any, exponent: Any) -> Any:
    whole = dtype_of(exponent)
    bits = tirx.shift_left(exponent + tirx.const(127, whole), tirx.const(23, whole))
    return tirx.reinterpret(dtype_of(x), bits)


def _keep_nan(x: Any, result: Any) -> Any:
    return tirx.Select(tirx.EQ(x, x), result, x)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Evaluate a polynomial by Horner's rule, coefficients in ascending order."""
    like = _constants(x)
    value = like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + like(coefficient)
    return value


def _constants(x: Any) -> _Function:
    return lambda value: tirx.const(value, dtype_of(x))


def dtype_of(x: Any) -> str:
    """Return the type of an expression, with its lanes."""
    return str(x.ty.dtype)


def type_like(x: Any, scalar: str) -> str:
    """Return a type of as many lanes as an expression has."""
    _, separator, lanes = dtype_of(x).partition("x")
    return f"{scalar}{separator}{lanes}"
