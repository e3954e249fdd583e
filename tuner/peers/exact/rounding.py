"""Roundings of a precision, drawn at random for results that are computed in float64.

Runs of a network with different draws show what rounding changes: by how much each element of its
outputs, and which of two nearly equal scores is the larger (Monte Carlo arithmetic: Parker, Pierce
and Eggert, "Monte Carlo arithmetic: how to gamble with your floating point and win", 2000).
"""

from typing import Any

import ml_dtypes
import numpy as np

from tuner.library.arrays import Array

_EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


class Rounding:
    """Roundings of one run.

    Args:
        precision: Coarsest precision that the network computes in; quantised networks compute in
            float32 between their codes.
        seed: Seed of the draws.
    """

    def __init__(self, precision: str, seed: int) -> None:
        self._dtype: Any = _DTYPES.get(precision, np.float32)
        self._epsilon = _EPSILONS.get(precision, float(np.finfo(np.float32).eps))
        self._rng = np.random.default_rng(seed)

    def move(self, operand: Any) -> Any:
        """Change every element by up to one epsilon; return other values than floats unchanged.

        What an operator makes of it has errors as large as those of its own sums and functions.
        """
        if not _is_wide(operand):
            return operand
        # Products of arrays without axes are scalars.
        draws = self._rng.uniform(-1.0, 1.0, operand.shape)
        return np.asarray(operand * (1.0 + self._epsilon * draws))

    def round(self, exact: Any, moved: Any) -> Any:
        """Return a result as an operator of this precision may compute it.

        Args:
            exact: Result in float64.
            moved: Result for moved operands.

        Returns:
            The exact value where the precision has it, such as of whole numbers and copies, or
            the moved one, with an error of its own. Codes of 8 bits are those of moved operands;
            indices and truth values, whose operands were rounded before, are exact.
        """
        if not isinstance(exact, np.ndarray) or np.shape(exact) != np.shape(moved):
            return exact
        if exact.dtype.kind in "iu" and exact.dtype.itemsize == 1:
            return moved
        if not _is_wide(exact):
            return exact
        with np.errstate(over="ignore", invalid="ignore"):
            is_inexact = exact.astype(self._dtype) != exact
            rounded = self.move(moved).astype(self._dtype).astype(np.float64)
        return np.where(is_inexact & np.isfinite(rounded), rounded, exact)


def widened(array: Array) -> Array:
    """Return a narrower array of floats in float64, and others unchanged."""
    is_float = array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16
    return array.astype(np.float64) if is_float else array


def _is_wide(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float64
