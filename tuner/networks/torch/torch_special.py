"""Decompositions of special functions of numbers, and of signs."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

# Half a circle in steps of which a Bessel function has all digits up to its largest value.
_N_ANGLES = 128
# float64 has no larger power of e.
_MAX_EXPONENT = 709
# Coefficients of Lanczos' series with g = 7, as Godfrey computed them.
_LANCZOS = (
    *(0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313),
    *(-176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6),
    1.5056327351493116e-7,
)


def _in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a tensor that computes in float64."""

    @functools.wraps(function)
    def convert(x: torch.Tensor) -> torch.Tensor:
        return function(x.double()).to(torch.result_type(x, 1.0))

    return convert


@_in_float64
def _lgamma(x: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the gamma function, by reflection left of 0.5."""
    is_left = x < 0.5
    z = torch.where(is_left, -x, x - 1)
    total = _LANCZOS[0] + sum(each / (z + n) for n, each in enumerate(_LANCZOS[1:], 1))
    shifted = z + 7.5
    right = (z + 0.5) * shifted.log() - shifted + (total * math.sqrt(2 * math.pi)).log()
    sine = (math.pi * (x - x.round()).abs()).sin()
    result = torch.where(is_left, math.log(math.pi) - sine.log() - right, right)
    return torch.where(x.isinf(), math.inf, result)


@_in_float64
def _digamma(x: torch.Tensor) -> torch.Tensor:
    """Return the derivative of the logarithm of the gamma function, by reflection left of 0.5."""
    is_left = x < 0.5
    z = torch.where(is_left, 1 - x, x)
    y = z + 8
    square = 1 / (y * y)
    series = 1 / 12 - square * (
        1 / 120 - square * (1 / 252 - square * (1 / 240 - square * (1 / 132)))
    )
    right = y.log() - 0.5 / y - square * series
    right = right - sum(1 / (z + n) for n in range(8))
    rest = x - x.round()
    left = right - math.pi / torch.tan(math.pi * rest)
    result = torch.where(is_left, left, right)
    result = torch.where((rest == 0) & (x < 0), math.nan, result)
    return torch.where(x == 0, -1 / x, result)


@_in_float64
def _erfinv(y: torch.Tensor) -> torch.Tensor:
    """Return the inverse of the error function: Winitzki's estimate, and steps of Halley."""
    rest = ((1 - y) * (1 + y)).log()
    estimate = 2 / (math.pi * 0.147) + rest / 2
    square = (estimate * estimate - rest / 0.147).sqrt() - estimate
    x = y.sign() * square.clamp(min=0).sqrt()
    for _ in range(3):
        step = (torch.erf(x) - y) * (x * x).exp() * (math.sqrt(math.pi) / 2)
        x = x - step / (1 + x * step)
    return torch.where(y.abs() < 1, x, torch.where(y.abs() == 1, y * math.inf, math.nan))


@_in_float64
def _i0(x: torch.Tensor) -> torch.Tensor:
    """Return a modified Bessel function, by the trapezoidal rule of its integral over a circle."""
    angles = (torch.arange(_N_ANGLES, device=x.device).double() + 0.5) * (math.pi / _N_ANGLES)
    size = x.abs()
    mean = (size[..., None] * (angles.cos() - 1)).exp().mean(-1)
    return torch.where(size > _MAX_EXPONENT, math.inf, mean * size.exp())


def _hypot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the length of a vector, whose square may leave the range."""
    x, y = x.abs(), y.abs()
    larger, smaller = torch.maximum(x, y), torch.minimum(x, y)
    is_regular = (larger > 0) & (larger < float("inf"))
    ratio = torch.where(is_regular, smaller / larger, 0.0)
    length = larger * torch.sqrt(1 + ratio * ratio)
    return torch.where((x == float("inf")) | (y == float("inf")), float("inf"), length)


def _signbit(x: torch.Tensor) -> torch.Tensor:
    is_negative = x < 0
    return is_negative | ((x == 0) & (1 / x < 0)) if x.is_floating_point() else is_negative


def _copysign(x: torch.Tensor, y: Any) -> torch.Tensor:
    """Return the magnitudes of a tensor with the signs of another one."""
    is_number = not isinstance(y, torch.Tensor)
    is_negative = math.copysign(1.0, y) < 0 if is_number else _signbit(y)
    dtype = torch.result_type(x, 1.0 if is_number else y)
    # Integers and truths have no magnitude of every number.
    size = x.to(dtype if dtype.is_floating_point else torch.get_default_dtype()).abs()
    if is_number:
        return -size if is_negative else size
    return torch.where(is_negative, -size, size)


_aten = torch.ops.aten
#: Functions of the operands by operator.
SPECIAL_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    _aten.copysign.Scalar: _copysign,
    _aten.copysign.Tensor: _copysign,
    _aten.digamma.default: _digamma,
    _aten.erfinv.default: _erfinv,
    _aten.hypot.default: _hypot,
    _aten.i0.default: _i0,
    _aten.lgamma.default: _lgamma,
    _aten.signbit.default: _signbit,
}
