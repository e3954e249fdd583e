"""Descriptions of kernels that packs take with them."""

import pytest

from tests.gpu_compilers import needs_triton
from tests.tuner.engines.relax.triton.conftest import (
    SPEC,
    attention,
    branches,
    convolution,
    gated,
    product,
)
from tests.tuner.engines.relax.triton.templates.test_windows import depthwise
from tuner.engines.relax.codegen.cuda import packing

pytestmark = needs_triton


@pytest.mark.parametrize(
    ("ir", "weights"),
    [
        (product((1, 64, 64, 64)), (1,)),
        (product((2, 64, 64, 64)), ()),
        (convolution(8, (32, 32), 3), (1,)),
        (gated((64, 64, 64)), (1, 2)),
        (branches(8, (32, 64, 32)), (2, 3)),
        (attention((4, 4), (1, 64, 16)), (1,)),
        (attention((4, 4), (16, 64, 16)), ()),
    ],
    ids=["product", "batch", "convolution", "gate", "branches", "step", "attention"],
)
def test_weights_are_what_second_operands_read(ir: bytes, weights: tuple[int, ...]) -> None:
    """Packs take them from memory that no cache holds, as keys and values of steps."""
    offer = packing.offer_kernels(ir, SPEC)

    assert offer.names
    assert offer.weights == weights


def test_windows_cost_their_steps() -> None:
    """A larger window reads the same memory, and takes longer."""
    small, large = (packing.offer_kernels(depthwise(size), SPEC) for size in (3, 7))

    assert small.names
    assert large.names
    assert large.secs > 1.5 * small.secs
