"""Outputs are compared element by element."""

import numpy as np
import pytest

from tuner.engines.verification import checks, comparison
from tuner.engines.verification.comparison import Expected

VALUES = np.array([1e6, 1e-3, 0.0], np.float32)
BOUNDS = np.array([1.0, 1e-6, 0.0], np.float32)


def test_outputs_within_their_bounds_agree() -> None:
    """Each element has its own."""
    output = VALUES + np.array([0.5, 5e-7, 0.0], np.float32)

    assert comparison.difference(output, Expected(VALUES, BOUNDS)) == ""


def test_a_small_element_is_not_hidden_by_a_large_one() -> None:
    """An error of a thousandth of a millionth of the largest output is found."""
    output = VALUES + np.array([0.0, 1e-3, 0.0], np.float32)

    text = comparison.difference(output, Expected(VALUES, BOUNDS))

    assert text.startswith("at (1,) is 0.002, expected 0.001 within 1e-06; 1 of 3")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_infinities_and_nan_have_to_be_where_they_are_expected(value: float) -> None:
    """There, and nowhere else."""
    expected = Expected(np.array([value, 1.0], np.float32), np.array([0.0, 0.1], np.float32))

    assert comparison.difference(np.array([value, 1.0], np.float32), expected) == ""
    assert comparison.difference(np.array([1.0, 1.0], np.float32), expected)
    assert comparison.difference(np.array([value, value], np.float32), expected)
    assert comparison.difference(np.array([-value, 1.0], np.float32), expected) or np.isnan(value)


def test_elements_without_a_bound_are_not_compared() -> None:
    """Their expected value is not defined."""
    expected = Expected(VALUES, np.full(3, np.inf, np.float32))

    assert comparison.difference(VALUES + 1e9, expected) == ""
    assert comparison.relative_error(VALUES + 1e9, expected) == 0.0


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool"])
def test_integers_are_equal(dtype: str) -> None:
    """A difference of one is an error."""
    values = np.array([0, 1, 0]).astype(dtype)

    assert comparison.difference(values, Expected(values, None)) == ""
    assert comparison.difference(values[::-1] ^ True, Expected(values, None))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int64", "bool"])
def test_a_spoiled_output_is_of_its_type(dtype: str) -> None:
    """NaN, the largest integer, or true."""
    spoiled = checks.spoiled((2, 3), dtype)

    assert (spoiled.shape, str(spoiled.dtype)) == ((2, 3), dtype)


def test_another_shape_is_wrong() -> None:
    """It is described."""
    assert "has shape (2,)" in comparison.difference(VALUES[:2], Expected(VALUES, None))
