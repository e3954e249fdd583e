"""Compare the outputs of two libraries, or of a library and the function it was made from."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

TOLERANCE = 1e-3
# A rounding error may carry a value across a threshold, and so change it completely.
_MAX_DIFFERING_SHARE = 0.01


def disagreement(actual: Sequence[Array], expected: Sequence[Array], tolerance: float) -> str:
    """Return how outputs differ; empty if they agree.

    Outputs of floats agree if at most one element in a hundred differs by more than ``tolerance``
    of the output's largest value. Of outputs of whole numbers, only shapes and dtypes are compared:
    they are often positions of maxima, where equal maxima may change places.
    """
    if len(actual) != len(expected):
        return f"{len(actual)} outputs instead of {len(expected)}"
    for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
        if left.shape != right.shape or left.dtype != right.dtype:
            return (
                f"output {number} is {left.dtype}{list(left.shape)} instead of "
                f"{right.dtype}{list(right.shape)}"
            )
        share = _differing_share(left, right, tolerance)
        if share > _MAX_DIFFERING_SHARE:
            return f"{share:.0%} of output {number} differ by more than {tolerance:g}"
    return ""


def _differing_share(actual: Array, expected: Array, tolerance: float) -> float:
    if actual.dtype.kind != "f" or not actual.size:
        return 0.0
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    scale = float(np.abs(expected[finite]).max()) if finite.any() else 0.0
    with np.errstate(invalid="ignore"):
        near = np.abs(actual - expected) <= tolerance * scale
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    return float(np.mean(~(near | same)))
