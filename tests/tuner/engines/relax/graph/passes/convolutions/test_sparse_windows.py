"""Dilated convolutions whose taps mostly read padding are split, and no output changes."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.networks import lower_proto, run_module
from tests.tuner.networks import models
from tests.tuner.networks.models import run
from tuner.engines.base import TargetInfo
from tuner.engines.relax.graph.extract import find_subgraphs


def network(shape: tuple[int, ...], c_out: int, **attributes: object) -> onnx.ModelProto:
    """Return a model with one convolution of 3 by 3, and ReLU."""
    groups = int(str(attributes.get("group", 1)))
    return onnx.shape_inference.infer_shapes(
        models.model(
            [
                helper.make_node("Conv", ["data", "w", "b"], ["c"], **attributes),
                helper.make_node("Relu", ["c"], ["y"]),
            ],
            {"data": shape},
            {"y": None},
            {"w": draw(c_out, shape[1] // groups, 3, 3, seed=1), "b": draw(c_out, seed=2)},
        )
    )


@pytest.mark.parametrize(
    ("shape", "attributes", "n_kernels"),
    [
        ((1, 512, 8, 6), {"dilations": [6, 6], "pads": [6, 6, 6, 6]}, 3),
        ((2, 256, 9, 8), {"dilations": [7, 6], "pads": [6, 6, 7, 5]}, 9),
        # Most taps read a pixel, windows lie apart, or there is too little to save.
        ((1, 256, 8, 8), {"dilations": [2, 2], "pads": [2, 2, 2, 2]}, 1),
        ((1, 256, 8, 8), {"dilations": [6, 6], "pads": [6, 6, 6, 6], "group": 2}, 1),
        ((1, 32, 8, 8), {"dilations": [6, 6], "pads": [6, 6, 6, 6]}, 1),
    ],
)
def test_taps_that_mostly_read_padding_are_added_alone(
    shape: tuple[int, ...], attributes: dict[str, object], n_kernels: int, target: TargetInfo
) -> None:
    """Each tap multiplies what it reads; the outputs are those of ONNX Runtime."""
    model = network(shape, 256, **attributes)
    data = draw(*shape, seed=9)
    (expected,) = run(model.SerializeToString(), {"data": data})

    module, file = lower_proto(model, target.spec)
    graphs = find_subgraphs(module)
    (actual,) = run_module(module, file, {"data": data}, target.spec)

    assert np.abs(actual - expected).max() < 1e-4 * expected.std()
    assert sum(graph.n_calls for graph in graphs if "conv" in graph.name) == n_kernels
    # A convolution that padding is fused into has no schedule by rule.
    assert not any("conv2d_pad" in graph.name for graph in graphs)
