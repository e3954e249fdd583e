"""Agreement of outputs within a tolerance."""

import numpy as np
import pytest

from tuner.jit.agreement import Array, disagreement

ONES = np.ones((10, 10), "float32")


def off(n_elements: int) -> Array:
    """Return ones, with other values in the first elements."""
    array = ONES.copy()
    array.reshape(-1)[:n_elements] = 1.5
    return array


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (ONES + 5e-4, ONES),
        (off(1), ONES),
        (ONES * np.nan, ONES * np.nan),
        (ONES * np.inf, ONES * np.inf),
        (np.array([1, 2]), np.array([2, 1])),
        (ONES[:0], ONES[:0]),
    ],
)
def test_agreeing_outputs(actual: Array, expected: Array) -> None:
    """Rounding, one element in a hundred, equal NaN, integers and empty arrays agree."""
    assert disagreement([actual], [expected], 1e-3) == ""


@pytest.mark.parametrize(
    ("actual", "expected", "problem"),
    [
        (off(2), ONES, "2% of output 0"),
        (ONES, ONES * np.nan, "100% of output 0"),
        (ONES * np.nan, ONES, "100% of output 0"),
        (ONES[0], ONES, "instead of float32"),
        (ONES.astype("float64"), ONES, "is float64"),
    ],
)
def test_disagreeing_outputs(actual: Array, expected: Array, problem: str) -> None:
    """Values, shapes, dtypes and the number of outputs are compared."""
    assert problem in disagreement([actual], [expected], 1e-3)
    assert disagreement([], [expected], 1e-3) == "0 outputs instead of 1"
