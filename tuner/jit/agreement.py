"""Whether two libraries, or a library and what it was made from, compute the same."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

TOLERANCE = 1e-3
# Where a threshold is crossed, a rounding error more or less makes a value another one.
_MOST_DIFFERING = 0.01


def disagreement(actual: Sequence[Array], expected: Sequence[Array], tolerance: float) -> str:
    """Say how outputs differ; empty if they agree.

    They agree if no more than one element in a hundred of any output of floats is off by more
    than ``tolerance`` of the output's largest value. Outputs of whole numbers are often places
    of a maximum, where equals may change places: only their shapes and dtypes are compared.
    """
    if len(actual) != len(expected):
        return f"{len(actual)} outputs instead of {len(expected)}"
    for number, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return (
                f"output {number} is {ours.dtype}{list(ours.shape)} instead of "
                f"{theirs.dtype}{list(theirs.shape)}"
            )
        share = _share_off(ours, theirs, tolerance)
        if share > _MOST_DIFFERING:
            return f"{share:.0%} of output {number} differ by more than {tolerance:g}"
    return ""


def _share_off(ours: Array, theirs: Array, tolerance: float) -> float:
    if ours.dtype.kind != "f" or not ours.size:
        return 0.0
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(theirs)
    scale = float(np.abs(theirs[finite]).max()) if finite.any() else 0.0
    with np.errstate(invalid="ignore"):
        near = np.abs(ours - theirs) <= tolerance * scale
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    return float(np.mean(~(near | same)))
