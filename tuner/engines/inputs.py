"""Seeded arguments for kernels, and tolerances for their outputs."""

import math
from functools import lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_SEED = 20_201


@lru_cache(maxsize=1)
def make_arguments(
    arguments: tuple[tuple[tuple[int, ...], str], ...], *, positive: bool = False
) -> list[Array]:
    """Draw the inputs of a kernel, identical in every process.

    Floating-point inputs are uniform in [-1, 1), integers are 0 or 1 so that they are
    valid as indices.

    Args:
        arguments: Shape and dtype of each input.
        positive: True to draw floating-point inputs from [0.1, 1) instead.
    """
    rng = np.random.default_rng(_SEED)
    drawn = [_draw(rng, shape, dtype) for shape, dtype in arguments]
    return [_as_positive(array) for array in drawn] if positive else drawn


def _as_positive(array: Array) -> Array:
    if array.dtype.kind != "f":
        return array
    return (np.abs(array) * 0.9 + 0.1).astype(array.dtype)


def _draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    if dtype.startswith(("int", "uint", "bool")):
        return rng.integers(0, 2, size=shape).astype(dtype)
    return (rng.random(size=shape, dtype=np.float32) * 2 - 1).astype(dtype)


def tolerance(dtype: str, n_terms: float) -> float:
    """Return the largest error, relative to the largest output, due to reordering a sum.

    Rounding errors of a sum of n terms grow as sqrt(n) when they are independent
    (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2); 16 is a safety factor.

    Args:
        dtype: Type of the output.
        n_terms: Length of the reduction for one output element, at least 1.
    """
    if dtype.startswith(("int", "uint", "bool")):
        return 0.0
    epsilon = float(np.finfo(dtype).eps)
    return min(16 * epsilon * math.sqrt(max(n_terms, 1.0)), 0.05) + 2 * epsilon


def relative_error(actual: Array, expected: Array) -> float:
    """Return the largest difference relative to the largest finite expected magnitude.

    The result is inf if the shapes differ, or if the non-finite elements differ. A reference
    without any finite element proves nothing, so the result is inf as well.
    """
    if actual.shape != expected.shape:
        return float("inf")
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return float("inf")
    if not np.isfinite(a[finite]).all():
        return float("inf")
    scale = float(np.abs(b[finite]).max()) or 1.0
    worst = float(np.abs(a[finite] - b[finite]).max())
    return float(worst / scale)
