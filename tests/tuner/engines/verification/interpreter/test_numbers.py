"""Numbers carry a bound on what kernels of their type may compute."""

import numpy as np
import pytest

from tuner.engines.verification.interpreter import numbers
from tuner.engines.verification.interpreter.numbers import UNKNOWN, Number


def exact(*values: float, dtype: str = "float32") -> Number:
    """Return numbers without error."""
    return Number(np.array(values, np.float64), None, dtype)


def within(number: Number, actual: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bool:
    """Return whether what a kernel computed lies within the bound everywhere."""
    return bool(np.all(np.abs(actual - number.value) <= number.errors))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("operation", ["Add", "Sub", "Mul", "Div"])
def test_rounded_arithmetic_lies_within_its_bound(operation: str, dtype: str) -> None:
    """The bound holds for the arithmetic of the type, and is not a hundred times too large."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(0.5, 2, 10_000).astype(dtype) for _ in range(2))
    operator = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[operation]
    wide = [Number(array.astype(np.float64), None, dtype) for array in (a, b)]

    result = numbers.apply(operation, tuple(wide), dtype)

    actual = operator(a, b).astype(np.float64)
    assert within(result, actual)
    assert np.max(result.errors) < 100 * np.max(np.abs(actual - result.value))


def test_exact_results_have_no_error() -> None:
    """Whole numbers and powers of two are computed exactly in any type."""
    whole = numbers.apply("Add", (exact(3, 5), exact(4, -6)), "float16")
    halves = numbers.apply("Mul", (exact(3, 5), exact(0.5, 0.25)), "float16")

    assert whole.error is None
    assert halves.error is None


@pytest.mark.parametrize("function", ["exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf"])
def test_an_error_of_the_argument_passes_through_a_function(function: str) -> None:
    """The bound covers the function at both ends of the interval."""
    argument = Number(np.array([0.5, 1.0, 2.0]), np.array([0.01, 0.0, 0.1]), "float32")

    result = numbers.apply(function, (argument,), "float32")

    for shift in (-1.0, 1.0):
        moved = Number(argument.value + shift * argument.errors, None, "float32")
        assert within(result, numbers.apply(function, (moved,), "float32").value)


def test_an_open_comparison_spans_both_choices() -> None:
    """The error is the distance of the choices if rounding may turn the comparison."""
    left = Number(np.array([1.0, 2.0]), np.array([0.1, 0.1]), "float32")
    is_greater = numbers.compare("GT", left, exact(1.05, 1.05))

    chosen = numbers.select(is_greater, exact(7.0, 7.0), exact(3.0, 3.0))

    np.testing.assert_array_equal(chosen.value, [3.0, 7.0])
    np.testing.assert_array_equal(chosen.errors, [4.0, 0.0])


def test_overflow_is_infinite_or_unknown() -> None:
    """Beyond the largest number of the type by more than the error, the result is infinite."""
    value = np.array([70_000.0, 65_520.0, 60_000.0])

    result = numbers.rounded(value, np.array([10.0, 10.0, 10.0]), "float16")

    assert result.value[0] == np.inf
    assert result.errors[1] == UNKNOWN
    assert result.errors[2] < 100


@pytest.mark.parametrize(
    ("dtype", "value", "wrapped"),
    [("int8", 130, -126), ("uint8", 260, 4), ("int16", 40_000, -25_536)],
)
def test_narrow_integers_wrap_around(dtype: str, value: int, wrapped: int) -> None:
    """As the code of LLVM and CUDA does."""
    result = numbers.wrapped(np.array([value]), dtype)

    assert result.value[0] == wrapped
    assert result.error is None


def test_an_overflow_of_wide_integers_is_undefined() -> None:
    """LLVM may assume that it does not happen."""
    assert numbers.wrapped(np.array([2**31]), "int32").errors[0] == UNKNOWN


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_sums_in_any_order_lie_within_their_bound(dtype: str) -> None:
    """Also sums of positive terms, which stop to grow in narrow types."""
    rng = np.random.default_rng(0)
    for low in (-1.0, 0.0):
        terms = rng.uniform(low, 1.0, (200, 3_000)).astype(dtype)
        wide = terms.astype(np.float64)
        bound = numbers.sum_error(wide.sum(axis=1), np.abs(wide).sum(axis=1), 3_000, dtype)
        for order in (terms, terms[:, ::-1], np.sort(terms, axis=1)):
            total = np.zeros(200, dtype)
            for column in order.T:
                total = (total + column).astype(dtype)
            assert np.all(np.abs(total.astype(np.float64) - wide.sum(axis=1)) <= bound)
