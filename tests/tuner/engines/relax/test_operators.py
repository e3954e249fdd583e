"""Every operator computes the outputs of ONNX Runtime through cleaning, lowering and a build."""

import pytest

from tests.tuner.engines.relax.networks import names_of
from tests.tuner.engines.relax.operator_cases import (
    FAMILIES,
    TRANSPOSED_CONVOLUTIONS,
    Case,
    Family,
    combine,
)
from tuner.engines.base import TargetInfo


@pytest.mark.parametrize(
    ("family", "each"),
    [
        pytest.param(
            family,
            each,
            id=f"{family.name}-{each.name}",
            marks=[pytest.mark.slow("compiles steps for half a minute")]
            * (family.name == "recurrent"),
        )
        for family in FAMILIES
        for each in family.cases
    ],
)
def test_outputs_agree(target: TargetInfo, family: Family, each: Case) -> None:
    """All outputs of a case have the shape, the dtype and the values of ONNX Runtime's."""
    family.check(each, target.spec)


def test_transposed_convolutions_are_convolutions(target: TargetInfo) -> None:
    """No kernel inserts zeros between the pixels of its input."""
    proto, _, _ = combine(TRANSPOSED_CONVOLUTIONS[:2])

    names = names_of(proto, target.spec)

    assert sum("conv2d" in name for name in names) == 2
    assert not [name for name in names if "conv2d_transpose" in name]
