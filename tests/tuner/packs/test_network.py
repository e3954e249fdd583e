"""Comparison of the outputs of networks in packs."""

import numpy as np
import pytest

from tuner.packs.runner.network import difference


@pytest.mark.parametrize(
    ("outputs", "others", "expected"),
    [
        ([3.0, 4.5], [3.0, 4.0], 0.1),
        ([3.0, np.nan], [3.0, 4.0], None),
        ([3.0, 4.0], [3.0, np.inf], None),
        ([3.0, np.nan], [3.0, np.nan], 0.0),
    ],
)
def test_numbers_that_are_not_finite_differ_unless_they_are_equal(
    outputs: list[float], others: list[float], expected: float | None
) -> None:
    """They hide neither behind the outputs before nor behind those after."""
    given, compared, equal = (
        np.array(each, "float32").view("uint8") for each in (outputs, others, [1.0, 2.0])
    )

    worst = difference(["float32"] * 3, [equal, given, equal], [equal, compared, equal])

    assert worst == (expected if expected is None else pytest.approx(expected))
