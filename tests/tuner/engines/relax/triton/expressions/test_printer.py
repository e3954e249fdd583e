"""Functions that printed sources define hold at the ends of float32."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tuner.engines.relax.triton.expressions.printer import HELPERS

_ENDS = [0.0, -0.0, 0.25, -0.5, 1.5, 2.5, 4194303.5, 4194304.5, 4194305.5, -4194305.5, 8388607.5]
_ENDS += [8388609.0, 1e-9, 3e38, np.inf, np.nan]


def _evaluated(name: str) -> Callable[[Any], Any]:
    """Return a function of the sources, with NumPy's arithmetic in place of Triton's."""
    language = SimpleNamespace(where=np.where, abs=np.abs, exp=np.exp, log=np.log)
    namespace: dict[str, Any] = {"tl": language}
    exec(f"def {name}{HELPERS[name]}", namespace)
    function: Callable[[Any], Any] = namespace[name]
    return function


@pytest.mark.parametrize(
    ("name", "expected"), [("_nearbyint", np.round), ("_log1p", np.log1p), ("_tanh", np.tanh)]
)
def test_functions_hold_at_the_ends(name: str, expected: Callable[[Any], Any]) -> None:
    """Halves go to even numbers, infinity and NaN to what NumPy has."""
    numbers = np.array(_ENDS, "float32")
    if name == "_log1p":
        numbers = np.abs(numbers)

    with np.errstate(all="ignore"):
        actual = _evaluated(name)(numbers)
        reference = expected(numbers.astype("float64"))

    np.testing.assert_allclose(actual, reference, rtol=1e-6)
