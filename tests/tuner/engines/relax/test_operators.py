"""Every operator computes the outputs of ONNX Runtime through cleaning, lowering and a build."""

from functools import lru_cache

import numpy as np
import pytest

from tests.tuner.engines.relax.networks import names_of, run_lowered
from tests.tuner.engines.relax.operator_cases import (
    FAMILIES,
    TRANSPOSED_CONVOLUTIONS,
    Case,
    combine,
)
from tests.tuner.networks.models import Array
from tuner.engines.base import TargetInfo

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]

_CASES = [(family, each) for family, cases in FAMILIES.items() for each in cases]


@lru_cache(maxsize=1)
def outputs_of(family: str, target: str) -> tuple[list[Array], list[Array]]:
    """Return the outputs of all cases of a family, and those of ONNX Runtime."""
    proto, feeds, expected = combine(FAMILIES[family])
    return run_lowered(proto, feeds, target), expected


@pytest.mark.parametrize(
    ("family", "each"),
    [
        pytest.param(
            family,
            each,
            id=f"{family}-{each.name}",
            marks=[pytest.mark.slow("compiles steps for half a minute")] * (family == "recurrent"),
        )
        for family, each in _CASES
    ],
)
def test_outputs_agree(target: TargetInfo, family: str, each: Case) -> None:
    """All outputs of a case have the shape, the dtype and the values of ONNX Runtime's."""
    before = FAMILIES[family][: FAMILIES[family].index(each)]
    start = sum(len(other.outputs) for other in before)
    part = slice(start, start + len(each.outputs))
    for actual, expected in zip(
        *(side[part] for side in outputs_of(family, target.spec)), strict=True
    ):
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype
        scale = max(1e-6, float(np.abs(expected).max(initial=0.0)))
        np.testing.assert_allclose(actual / scale, expected / scale, rtol=0, atol=each.tolerance)


def test_transposed_convolutions_are_convolutions(target: TargetInfo) -> None:
    """No kernel inserts zeros between the pixels of its input."""
    proto, _, _ = combine(TRANSPOSED_CONVOLUTIONS[:2])

    names = names_of(proto, target.spec)

    assert sum("conv2d" in name for name in names) == 2
    assert not [name for name in names if "conv2d_transpose" in name]
