"""Scatters that TVM's kernels read right stay one kernel; their outputs are tested elsewhere."""

import pytest
from onnx import TensorProto, helper

from tests.tuner.engines.relax.networks import names_of
from tuner.engines.base import TargetInfo

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]

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
    graph = helper.make_graph(
        [helper.make_node("ScatterElements", ["data", "places", "updates"], ["y"], axis=axis)],
        "scatter",
        [
            helper.make_tensor_value_info("data", TensorProto.FLOAT, _SHAPE),
            helper.make_tensor_value_info("places", TensorProto.INT64, lengths),
            helper.make_tensor_value_info("updates", TensorProto.FLOAT, lengths),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, _SHAPE)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    assert len(names_of(proto, target.spec)) == (3 if is_split else 1)
