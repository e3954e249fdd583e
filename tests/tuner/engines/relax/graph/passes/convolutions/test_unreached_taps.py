"""Taps that read padding at every position are dropped, and no output changes."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.tuner.engines.relax.conftest import Array, draw
from tests.tuner.engines.relax.networks import lower_proto, run_lowered
from tests.tuner.networks import models
from tests.tuner.networks.models import run
from tuner.engines.base import TargetInfo
from tuner.engines.relax.graph.extract import find_subgraphs


def network(data: Array, weight: Array, **attributes: object) -> onnx.ModelProto:
    """Return a model with one convolution."""
    return onnx.shape_inference.infer_shapes(
        models.model(
            [helper.make_node("Conv", ["data", "w"], ["y"], **attributes)],
            {"data": data.shape},
            {"y": None},
            {"w": weight},
        )
    )


@pytest.mark.parametrize(
    ("size", "window", "attributes", "kept"),
    [
        ((6, 9), (3, 3), {"dilations": [8, 8], "pads": [8, 8, 8, 8]}, (1, 3)),
        ((9, 9), (3, 3), {"dilations": [8, 8], "pads": [8, 8, 8, 8]}, (3, 3)),
        ((1, 1), (3, 3), {"pads": [1, 1, 1, 1]}, (1, 1)),
        ((2, 7), (5, 3), {"pads": [2, 1, 2, 1], "strides": [2, 2]}, (2, 3)),
        ((4,), (3,), {"dilations": [4], "pads": [8, 0]}, (1,)),
        # The window begins behind the start of the input, which no padding can say.
        ((4,), (3,), {"dilations": [2], "pads": [1, 0]}, (3,)),
    ],
)
def test_unreached_taps_are_dropped(
    size: tuple[int, ...],
    window: tuple[int, ...],
    attributes: dict[str, list[int]],
    kept: tuple[int, ...],
    target: TargetInfo,
) -> None:
    """The window keeps the taps that read a pixel somewhere, and what lies between them."""
    data, weight = draw(1, 4, *size), draw(8, 4, *window, seed=3)
    model = network(data, weight, **attributes)
    (expected,) = run(model.SerializeToString(), {"data": data})

    (actual,) = run_lowered(model, {"data": data}, target.spec)

    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    shapes = [
        tuple(int(n) for n in param.shape)
        for graph in find_subgraphs(lower_proto(model, target.spec)[0])
        for param in graph.module["main"].params
    ]
    assert (8, *kept, 4) in shapes
