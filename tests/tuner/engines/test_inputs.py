"""Seeded inputs of kernels, and the tolerance of their outputs."""

import numpy as np
import pytest

from tuner.engines.inputs import make_arguments, relative_error, tolerance


def array(*values: float, dtype: str = "float32") -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return a vector."""
    return np.array(values, dtype=dtype)


def test_arguments_are_the_same_in_every_call() -> None:
    """Inputs depend on shapes and dtypes only."""
    specs = (((3, 4), "float32"), ((5,), "int64"), ((2,), "float16"))
    first = [drawn.copy() for drawn in make_arguments(specs)]
    make_arguments.cache_clear()

    for before, after in zip(first, make_arguments(specs), strict=True):
        np.testing.assert_array_equal(before, after)
        assert before.dtype == after.dtype


def test_arguments_are_small_numbers() -> None:
    """Floats lie in [-1, 1) on both sides of zero, integers are valid indices."""
    floats, ints, flags = make_arguments(
        (((1000,), "float32"), ((1000,), "int32"), ((1000,), "bool"))
    )

    assert floats.min() < -0.9 < 0.9 < floats.max() < 1
    assert set(ints) == {0, 1}
    assert set(flags) == {False, True}


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        (array(1, 2, 4), array(1, 2, 4), 0.0),
        (array(1, 2, 3.9), array(1, 2, 4), 0.025),
        # Relative to the largest, so that a rounded zero is not an infinite error.
        (array(1e-9, 1), array(0, 1), 1e-9),
        (array(0, 0), array(0, 0), 0.0),
        (array(0.5, 0), array(0, 0), 0.5),
        (array(np.nan, 1), array(2, 1), np.inf),
        (array(np.inf, 1), array(2, 1), np.inf),
        (array(np.nan, 1), array(np.nan, 1), 0.0),
        (array(np.inf, 1), array(np.inf, 1), 0.0),
        (array(-np.inf, 1), array(np.inf, 1), np.inf),
        (array(1, 1), array(np.nan, 1), np.inf),
        # A reference without one finite value verifies nothing.
        (array(np.nan), array(np.nan), np.inf),
        # The infinite element hides no error of the others.
        (array(np.inf, 1.5), array(np.inf, 1), 0.5),
        (array(1, 2), array(1, 2, 3), np.inf),
        (array(1, 2).reshape(1, 2), array(1, 2), np.inf),
        (array(3, 4, dtype="int32"), array(3, 4, dtype="int32"), 0.0),
        (array(3, 5, dtype="int32"), array(3, 4, dtype="int32"), 0.25),
        (array(1, 0, dtype="bool"), array(1, 1, dtype="bool"), 1.0),
    ],
)
def test_relative_error(
    actual: np.ndarray[tuple[int], np.dtype[np.float64]],
    expected: np.ndarray[tuple[int], np.dtype[np.float64]],
    error: float,
) -> None:
    """It is the largest difference over the largest magnitude, or inf for unlike outputs."""
    assert relative_error(actual, expected) == pytest.approx(error, rel=1e-5, abs=1e-12)


def test_tolerance_grows_with_the_reduction_and_has_a_limit() -> None:
    """Longer sums may differ more, but never enough for a wrong kernel to pass."""
    values = [tolerance("float32", n) for n in (1, 100, 10_000, 10**12)]

    assert values == sorted(values)
    assert values[0] < 1e-5
    assert values[2] < 1e-3
    assert values[-1] < 0.06
    assert tolerance("float16", 100) > tolerance("float32", 100)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool"])
def test_integers_must_be_exact(dtype: str) -> None:
    """Rounding does not affect integers."""
    assert tolerance(dtype, 1e6) == 0.0
