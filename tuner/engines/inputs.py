"""Seeded arguments for kernels, and how far an output may be off."""

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
    """Draw the inputs of a kernel, the same ones in every process.

    Floating-point inputs are uniform in [-1, 1), integers are 0 or 1 so that they are
    valid as indices.

    Args:
        arguments: Shape and dtype of each input.
        positive: Draw floating-point inputs from [0.1, 1) instead.
    """
    rng = np.random.default_rng(_SEED)
    drawn = [_draw(rng, shape, dtype) for shape, dtype in arguments]
    return [_made_positive(array) for array in drawn] if positive else drawn


def _made_positive(array: Array) -> Array:
    if array.dtype.kind != "f":
        return array
    return (np.abs(array) * 0.9 + 0.1).astype(array.dtype)


def _draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    if dtype.startswith(("int", "uint", "bool")):
        return rng.integers(0, 2, size=shape).astype(dtype)
    return (rng.random(size=shape, dtype=np.float32) * 2 - 1).astype(dtype)


def tolerance(dtype: str, n_terms: float) -> float:
    """Largest error, relative to the largest output, that reordering a sum explains.

    Rounding errors of a sum of n terms grow as sqrt(n) when they are independent
    (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2); 16 is margin.

    Args:
        dtype: Of the output.
        n_terms: Length of the reduction behind one output element, at least 1.
    """
    if dtype.startswith(("int", "uint", "bool")):
        return 0.0
    epsilon = float(np.finfo(dtype).eps)
    return min(16 * epsilon * math.sqrt(max(n_terms, 1.0)), 0.05) + 2 * epsilon


def relative_error(actual: Array, expected: Array) -> float:
    """Largest difference relative to the largest finite expected magnitude; inf if unlike.

    Where the reference is not finite, the output must be the same kind of not finite; a
    reference that is finite nowhere proves nothing, and nothing is like it.
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
