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
from tvm.ir import Op

# TVM's own rules for llvm have level 10.
_LEVEL = 20

_LN2_HIGH = 355.0 / 512.0  # exact in float32 times any exponent
_LN2_LOW = math.log(2.0) - _LN2_HIGH
_MAX_EXP, _MIN_EXP = 89.0, -104.0  # beyond these, exp overflows or is zero in float32

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

_Function = Callable[[Any], Any]


def register() -> None:
    """Have TVM compile these functions for CPUs in this process."""
    for name, function in (
        ("exp", exp),
        ("log", log),
        ("tanh", tanh),
        ("sigmoid", sigmoid),
        ("erf", erf),
    ):
        tirx.op.register_intrin_lowering(
            f"tirx.{name}", target="llvm", f=_of_float32(name, function), level=_LEVEL
        )


def exp(x: Any) -> Any:
    """Return e to the power of x."""
    like = _constants(x)
    clipped = tirx.min(tirx.max(x, like(_MIN_EXP)), like(_MAX_EXP))
    n = tirx.round(clipped * like(1.0 / math.log(2.0)))
    r = clipped - n * like(_LN2_HIGH) - n * like(_LN2_LOW)
    power = r * r * _polynomial(r, _EXP) + r + like(1.0)
    return _keep_nan(x, _scale(power, n))


def log(x: Any) -> Any:
    """Return the natural logarithm of x."""
    like = _constants(x)
    # Subnormal numbers are scaled by 2^23 first, which is subtracted from the exponent.
    is_small = x < like(2.0**-126)
    normal = tirx.Select(is_small, x * like(2.0**23), x)
    whole = _type(x, "int32")
    bits = tirx.reinterpret(whole, normal) - tirx.const(0x3F3504F3, whole)  # sqrt(1/2)
    exponent = tirx.Cast(_dtype(x), tirx.shift_right(bits, tirx.const(23, whole)))
    exponent = exponent - tirx.Select(is_small, like(23.0), like(0.0))
    mantissa_bits = tirx.bitwise_and(bits, tirx.const(0x7FFFFF, whole))
    f = tirx.reinterpret(_dtype(x), mantissa_bits + tirx.const(0x3F3504F3, whole)) - like(1.0)
    tail = f * f * f * _polynomial(f, _LOG) - like(0.5) * f * f + exponent * like(_LN2_LOW)
    finite = exponent * like(_LN2_HIGH) + (f + tail)
    result = tirx.Select(x < like(math.inf), finite, x)
    result = tirx.Select(tirx.EQ(x, like(0.0)), like(-math.inf), result)
    return _keep_nan(x, tirx.Select(x < like(0.0), like(math.nan), result))


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent of x."""
    like = _constants(x)
    magnitude = tirx.Select(x < like(0.0), -x, x)
    z = x * x
    near = x + x * z * _polynomial(z, _TANH)
    far = like(1.0) - like(2.0) / (exp(magnitude + magnitude) + like(1.0))
    far = tirx.Select(x < like(0.0), -far, far)
    return tirx.Select(magnitude < like(_MAX_TANH_POLYNOMIAL), near, far)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    like = _constants(x)
    return like(1.0) / (like(1.0) + exp(-x))


def erf(x: Any) -> Any:
    """Return the error function of x."""
    like = _constants(x)
    clipped = tirx.min(tirx.max(x, like(-_MAX_ERF)), like(_MAX_ERF))
    z = clipped * clipped
    value = clipped * _polynomial(z, _ERF_P) / _polynomial(z, _ERF_Q)
    return _keep_nan(x, tirx.min(tirx.max(value, like(-1.0)), like(1.0)))


def _of_float32(name: str, function: _Function) -> _Function:
    """Lower calls on float32, and on float16 in float32; leave all others to TVM's own rule."""
    lower_otherwise = Op.get(f"tirx.{name}").get_attr("llvm.FLowerIntrinsic")

    def lower(call: Any) -> Any:
        (x,) = call.args
        if _dtype(x).startswith("float32"):
            return function(x)
        if _dtype(x).startswith("float16"):
            return tirx.Cast(_dtype(x), function(tirx.Cast(_type(x, "float32"), x)))
        return lower_otherwise(call)

    return lower


def _scale(x: Any, n: Any) -> Any:
    """Return x times 2 to the power of n, in two steps: one may exceed the range of exponents."""
    whole = _type(x, "int32")
    exponent = tirx.Cast(whole, n)
    half = tirx.shift_right(exponent, tirx.const(1, whole))
    return x * _power_of_two(x, half) * _power_of_two(x, exponent - half)


def _power_of_two(x: Any, exponent: Any) -> Any:
    whole = _dtype(exponent)
    bits = tirx.shift_left(exponent + tirx.const(127, whole), tirx.const(23, whole))
    return tirx.reinterpret(_dtype(x), bits)


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
    return lambda value: tirx.const(value, _dtype(x))


def _dtype(x: Any) -> str:
    return str(x.ty.dtype)


def _type(x: Any, scalar: str) -> str:
    _, separator, lanes = _dtype(x).partition("x")
    return f"{scalar}{separator}{lanes}"
