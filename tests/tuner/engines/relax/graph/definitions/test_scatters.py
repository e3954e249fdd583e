"""Scatters that TVM's kernels read right stay one kernel; their outputs are tested elsewhere."""

import pytest
from onnx import TensorProto, helper

from tests.tuner.engines.relax.networks import names_of
from tests.tuner.networks import models
from tuner.engines.base import TargetInfo

_SHAPE = (4, 5, 6, 3)


@pytest.mark.parametrize(
    ("axis", "lengths", "is_split"),
    [
        (1, (4, 5, 6, 3), False),
        (1, (4, 2, 6, 3), False),
        # The first axis of those before, and of those behind.
        (1, (2, 2, 3, 3), False),
        (3, (2, 5, 6, 3), False),
        (1, (4, 5, 6, 2), True),
        (-1, (4, 5, 4, 3), True),
    ],
)
def test_only_what_the_kernel_misreads_is_split(
    target: TargetInfo, axis: int, lengths: tuple[int, ...], is_split: bool
) -> None:
    """A part is cut out, scattered to and joined with the rest by a kernel each."""
    proto = models.model(
        [helper.make_node("ScatterElements", ["data", "places", "updates"], ["y"], axis=axis)],
        {"data": _SHAPE, "places": lengths, "updates": lengths},
        {"y": _SHAPE},
        kinds={"places": TensorProto.INT64},
        opset=18,
    )

    assert len(names_of(proto, target.spec)) == (3 if is_split else 1)
