"""The definitions of softmax equal numpy's, for every length of a row."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from tests.tuner.engines.relax.conftest import Array, draw
from tests.tuner.engines.relax.networks import run_kernel
from tuner.engines.relax.graph.definitions import softmax


def evaluate(define: Callable[[te.Tensor], te.Tensor], x: Array) -> Array:
    """Compile a definition without a schedule, and run it."""
    data = te.placeholder(x.shape, "float32", "x")
    (values,) = run_kernel(tvm.IRModule({"main": te.create_prim_func([data, define(data)])}), x)
    return values


def expected(x: Array) -> Any:
    """Return the logarithm of a softmax in float64."""
    shifted = x.astype("float64") - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.parametrize("shape", [(3, 1), (2, 3, 7), (5, 32), (3, 197)])
def test_the_definitions_equal_those_of_numpy(shape: tuple[int, ...]) -> None:
    """Rows of whole lanes, with a rest, shorter than the lanes, and a single row."""
    x = draw(*shape) * 20

    np.testing.assert_allclose(evaluate(softmax.softmax, x), np.exp(expected(x)), 1e-5, 1e-7)
    np.testing.assert_allclose(evaluate(softmax.log_softmax, x), expected(x), 1e-5, 1e-5)


def test_the_largest_element_of_a_rest_counts() -> None:
    """Without it, the exponentials of 200 and more would be infinite."""
    x = np.zeros((37, 37), "float32")
    np.fill_diagonal(x, 200)

    np.testing.assert_allclose(evaluate(softmax.softmax, x), np.eye(37), atol=1e-6)


def test_masked_elements_are_zero_and_masked_rows_not_a_number() -> None:
    """Minus infinity masks, as in attention."""
    x = draw(2, 40)
    x[0, 20:] = -np.inf
    x[1] = -np.inf

    first, second = evaluate(softmax.softmax, x)

    np.testing.assert_allclose(first[:20], np.exp(expected(x[0, :20])), 1e-5)
    assert not first[20:].any()
    assert np.isnan(second).all()
