"""Comparison of the outputs of a library with a peer's, element by element."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tuner.library.arrays import Array
from tuner.networks.base import PRECISIONS


@dataclass(frozen=True)
class Tolerance:
    """Largest error of one element: a share of the element and a share of its output's spread.

    Attributes:
        relative: Share of the magnitude of the element.
        of_spread: Share of the spread of the output; see :func:`spread_of`.
    """

    relative: float
    of_spread: float


#: By the coarsest precision that the network computes in; docs/measuring.md has the reasons.
TOLERANCES = {
    "float64": Tolerance(1e-7, 1e-6),
    "float32": Tolerance(1e-4, 1e-3),
    "float16": Tolerance(1e-2, 1e-1),
    "bfloat16": Tolerance(5e-2, 2e-1),
    "quantised": Tolerance(5e-2, 2e-1),
}

# Runtimes compute the sigmoid of float32 and narrower types as 0.5 plus a fraction of polynomials,
# which rounds every result as it rounds one; ONNX Runtime 1.31 errs by up to 1.4 epsilons.
_SIGMOID_ERROR = 2 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class OutputCheck:
    """The comparison of one output.

    Attributes:
        name: Name of the output in the library.
        n_elements: Elements of the output.
        n_differing: Elements with an error above their tolerance, with a NaN or infinity that
            the peer does not have, or, of whole numbers, that are not equal.
        n_not_finite: Those of ``n_differing`` with a NaN or infinity on either side.
        n_near_ties: Elements that differ from the peer and that float64 confirms, which do not
            count as differing; see :mod:`tuner.compile.near_ties`.
        absolute_error: Largest absolute error of the elements that are finite on both sides.
        worst: Largest error as a share of the tolerance of its element; above 1 it differs.
        is_constant: True if all elements are equal, within the error of a sigmoid for one, or not
            finite, so that agreement proves little.
        problem: Difference of shape or dtype, of which nothing else was compared; empty if none.
    """

    name: str
    n_elements: int
    n_differing: int = 0
    n_not_finite: int = 0
    n_near_ties: int = 0
    absolute_error: float = 0.0
    worst: float = 0.0
    is_constant: bool = False
    problem: str = ""

    @property
    def agrees(self) -> bool:
        """True if no element differs."""
        return not self.problem and self.n_differing == 0


def compare_output(
    name: str, actual: Array, expected: Array, precision: str, *, is_sigmoid: bool = False
) -> OutputCheck:
    """Compare an output with that of a peer.

    Floats may differ by the tolerance of their dtype, or of ``precision`` if that is coarser.
    NaN must be where the peer has NaN, infinities where it has the same infinity. Whole numbers
    and booleans must be equal.

    Args:
        name: Name of the output.
        actual: Output of the library.
        expected: Output of the peer; float32 for a bfloat16 one.
        precision: Coarsest precision that the network computes in.
        is_sigmoid: True if elements are results of a Sigmoid, whose error is that of one however
            small they are.
    """
    problem = _mismatch(actual, expected)
    if problem:
        return OutputCheck(name, actual.size, problem=problem)
    if is_float(actual):
        least = smallest_tolerance(actual, is_sigmoid=is_sigmoid)
        shares = error_shares(actual, expected, precision, least)
        actual, expected = actual.astype(np.float64), expected.astype(np.float64)
        finite, same = _agreement(actual, expected)
        return OutputCheck(
            name,
            actual.size,
            n_differing=int(np.count_nonzero(shares > 1.0)),
            n_not_finite=int(np.count_nonzero(~finite & ~same)),
            absolute_error=float(np.abs(actual[finite] - expected[finite]).max(initial=0.0)),
            worst=float(shares.max(initial=0.0)),
            is_constant=_is_constant(expected, least),
        )
    # Python's integers do not overflow.
    error = np.abs(actual.astype(object) - expected.astype(object)).astype(np.float64)
    return OutputCheck(
        name,
        actual.size,
        n_differing=int(np.count_nonzero(error)),
        absolute_error=float(error.max(initial=0.0)),
        worst=float("inf") if error.any() else 0.0,
        is_constant=_is_constant(expected),
    )


def spread_of(values: Array) -> float:
    """Return the standard deviation of finite values, without their smallest and largest.

    Those are often a filling, such as the zeros of a Relu or -1e9 where scores are masked.
    """
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0
    inner = finite[(finite > finite.min()) & (finite < finite.max())]
    return float(np.std(inner if inner.size > 1 else finite))


def smallest_tolerance(actual: Array, *, is_sigmoid: bool) -> float:
    """Return the tolerance that every element of an output of floats has at least."""
    is_narrow = is_sigmoid and actual.dtype != np.float64
    # Some runtimes flush what is below the smallest normal number to zero.
    return max(_SIGMOID_ERROR if is_narrow else 0.0, _smallest_normal(actual.dtype))


def error_shares(actual: Array, expected: Array, precision: str, least: float | Array) -> Array:
    """Return the errors of floats as shares of their tolerance; above 1 they differ.

    Args:
        actual: Elements to check.
        expected: Elements to compare with, of the same shape.
        precision: Coarsest precision that the network computes in.
        least: Tolerance that each element, or all have at least.
    """
    tolerance = TOLERANCES[max(precision, str(actual.dtype), key=PRECISIONS.index)]
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    finite, same = _agreement(actual, expected)
    allowed = tolerance.relative * np.abs(expected) + tolerance.of_spread * spread_of(expected)
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(actual - expected))
        shares: Array = error / np.maximum(allowed, least)
    return np.where(finite | same, shares, np.inf)


def _agreement(actual: Array, expected: Array) -> tuple[Array, Array]:
    """Return which elements are finite on both sides, and which are equal or NaN on both."""
    finite = np.isfinite(actual) & np.isfinite(expected)
    return finite, (actual == expected) | (np.isnan(actual) & np.isnan(expected))


def _smallest_normal(dtype: np.dtype[Any]) -> float:
    if dtype == ml_dtypes.bfloat16:
        return float(np.finfo(np.float32).smallest_normal)
    return float(np.finfo(dtype).smallest_normal)


def _mismatch(actual: Array, expected: Array) -> str:
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, and {expected.shape} in the peer"
    wide = np.float32 if actual.dtype == ml_dtypes.bfloat16 else actual.dtype
    if wide != expected.dtype:
        return f"dtype {actual.dtype}, and {expected.dtype} in the peer"
    return ""


def is_float(array: Array) -> bool:
    """Return whether the elements are floating-point numbers, bfloat16 too."""
    return array.dtype.kind == "f" or bool(array.dtype == ml_dtypes.bfloat16)


def _is_constant(expected: Array, least: float = 0.0) -> bool:
    values = expected[np.isfinite(expected)].astype(np.float64)
    if expected.size < 2:
        return False
    scale = float(np.abs(values).max(initial=0.0)) or 1.0
    return not values.size or bool(np.ptp(values) < max(1e-6 * scale, least))
