"""Concatenations between convolutions become sums, which need no copy."""

import onnx
import pytest
from onnx import helper

from tests.tuner.engines.relax.conftest import Save, draw
from tests.tuner.engines.relax.test_lowering import checked_names
from tuner.engines.base import TargetInfo

_POOL = helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2])


@pytest.mark.parametrize(
    ("before", "n_channels", "has_copy"),
    [([], 8, False), ([_POOL], 8, False), ([], 16, True)],
    ids=["convolution", "pool", "wide"],
)
def test_a_convolution_of_a_concatenation_is_a_sum(
    save: Save, target: TargetInfo, before: list[onnx.NodeProto], n_channels: int, *, has_copy: bool
) -> None:
    """A pool is between them at will; a convolution to as many channels keeps the copy."""
    nodes = [
        helper.make_node("Conv", ["data", "left"], ["a"]),
        helper.make_node("Conv", ["data", "right"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
        *before,
        helper.make_node("Conv", ["p" if before else "c", "w", "bias"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    weights = {"left": draw(12, 3, 1, 1), "right": draw(8, 3, 1, 1, seed=1)}
    weights |= {"w": draw(n_channels, 20, 3, 3, seed=2), "bias": draw(n_channels, seed=3)}
    model = save(nodes, (1, 3, 10, 10), weights)

    assert any("concat" in name for name in checked_names(model, target)) == has_copy
