"""Inputs are drawn alike everywhere, and exercise their types."""

import numpy as np
import pytest

from tuner.engines.base import InputKind
from tuner.engines.verification import input_sets
from tuner.engines.verification.input_sets import InputSet, InputSpec


def drawn(kind: InputKind, *specs: InputSpec, seed: int = 0) -> list[input_sets.Array]:
    """Draw inputs without the cache."""
    input_sets.draw.cache_clear()
    return input_sets.draw(InputSet(kind, seed, specs))


@pytest.mark.parametrize("kind", ["real", "whole"])
def test_equal_sets_are_equal_and_other_seeds_are_not(kind: InputKind) -> None:
    """The checksum tells them apart."""
    spec = InputSpec((20, 30), "float32")

    first, again = drawn(kind, spec), drawn(kind, spec)
    other = drawn(kind, spec, seed=1)

    assert input_sets.checksum(first) == input_sets.checksum(again)
    assert input_sets.checksum(first) != input_sets.checksum(other)


def test_a_set_survives_its_text() -> None:
    """The text of a reference file gives an equal set."""
    made = InputSet("whole", 3, (InputSpec((2, 3), "int8", -128, 127), InputSpec((), "bfloat16")))

    assert InputSet.load(made.dump()) == made


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_floats_have_both_signs(dtype: str) -> None:
    """Dense numbers in [-1, 1); whole ones exact in the type."""
    spec = InputSpec((50, 50), dtype)
    real = drawn("real", spec)[0].astype(np.float64)
    whole = drawn("whole", spec)[0].astype(np.float64)

    assert -1.0 <= real.min() < -0.9 < 0.9 < real.max() <= 1.0
    assert set(np.unique(whole)) == {-3, -2, -1, 1, 2, 3}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_integers_reach_both_ends_of_their_range(dtype: str) -> None:
    """Saturation and wrong signs show at the ends."""
    low, high = input_sets.integer_range(dtype, 64)
    (values,) = drawn("whole", InputSpec((50, 50), dtype, low, high))

    assert str(values.dtype) == dtype
    assert (values.min(), values.max()) == (np.iinfo(dtype).min, np.iinfo(dtype).max)


def test_sparse_numbers_have_their_density() -> None:
    """Few terms of a sum differ from 0."""
    (values,) = drawn("whole", InputSpec((100, 100), "float16", density=0.1, magnitude=1))

    assert 0.05 < np.count_nonzero(values) / values.size < 0.15


def test_booleans_are_both() -> None:
    """True and false."""
    (values,) = drawn("real", InputSpec((100,), "bool"))

    assert 20 < values.sum() < 80


def test_peaks_lie_at_the_ends_of_axes() -> None:
    """A maximum of many numbers depends on the last of them in some rows."""
    (values,) = drawn("whole", InputSpec((64, 1000), "float32", has_peaks=True))

    assert np.any(np.argmax(values, axis=1) == 999)
    assert np.all(np.abs(values[1:-1, 1:-1]) <= 3)
