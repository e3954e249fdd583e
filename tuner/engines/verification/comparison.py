"""Comparison of an output with its expected values, within the errors that are allowed."""

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Expected:
    """An expected output.

    Attributes:
        values: Expected values.
        bounds: Largest allowed difference of each, inf for no check; None for exact equality.
        loose_bounds: The same for kernels of an algorithm that magnifies rounding errors; None if
            there are none.
    """

    values: Array
    bounds: Array | None
    loose_bounds: Array | None = None

    def loose(self) -> "Expected":
        """Return the same values within the loose bounds."""
        return self if self.loose_bounds is None else Expected(self.values, self.loose_bounds)


def difference(output: Array, expected: Expected) -> str:
    """Describe the first element that differs by more than its bound; empty if none does."""
    values = expected.values
    if output.shape != values.shape:
        return f"has shape {output.shape}, expected {values.shape}"
    actual = output if output.dtype == values.dtype else output.astype(values.dtype)
    wrong = _differing(actual, expected)
    if not wrong.any():
        return ""
    n_wrong = int(wrong.sum())
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    bound = 0.0 if expected.bounds is None else float(expected.bounds[at])
    place = f"at {at} " if at else ""
    return (
        f"{place}is {actual[at]:.6g}, expected {values[at]:.6g} within {bound:.3g}; "
        f"{n_wrong} of {values.size} elements are wrong"
    )


def digest(output: Array, dtype: str) -> int:
    """Return a checksum of an output as values of a type; outputs that are equal have equal ones.

    Both zeros are one number, and so are all that are not numbers.
    """
    values = output.astype(dtype)
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values + 0)
    return zlib.crc32(np.ascontiguousarray(values).view(np.uint8).data)


def relative_error(output: Array, expected: Expected) -> float:
    """Return the largest difference relative to the largest magnitude, of elements checked."""
    if output.shape != expected.values.shape or not output.size:
        return math.inf if output.size else 0.0
    if expected.values.dtype.kind != "f":
        values, actual = expected.values.astype(np.float64), output.astype(np.float64)
    else:
        values, actual = expected.values, output.astype(expected.values.dtype, copy=False)
    with np.errstate(invalid="ignore"):
        apart = np.abs(actual - values)
    if expected.bounds is not None:
        apart = np.where(np.isinf(expected.bounds), 0.0, apart)
    finite = np.isfinite(values)
    if finite.all():
        scale, worst = float(np.abs(values).max()), float(apart.max())
    else:
        scale = float(np.abs(values[finite]).max(initial=0.0))
        worst = float(apart[finite].max(initial=0.0))
    return math.inf if math.isnan(worst) else worst / (scale or 1.0)


def _differing(actual: Array, expected: Expected) -> Array:
    """Return where an output differs by more than its bound, or is not finite elsewhere."""
    values, bounds = expected.values, expected.bounds
    if bounds is None:
        wrong = actual != values
    elif values.dtype.kind == "f":
        with np.errstate(invalid="ignore", over="ignore"):
            wrong = ~(np.abs(actual - values) <= bounds)
    else:
        apart = np.abs(actual.astype(np.float64) - values.astype(np.float64))
        wrong = apart > bounds
    if wrong.any() and values.dtype.kind == "f":
        agree = (actual == values) | (np.isnan(actual) & np.isnan(values))
        wrong = wrong & ~agree
        if bounds is not None:
            wrong = wrong & ~np.isinf(bounds)
    result: Array = np.asarray(wrong)
    return result
