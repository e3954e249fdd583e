"""Convolutions of videos with windows of one image become convolutions of images."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.tuner.engines.relax.conftest import Array, draw
from tests.tuner.engines.relax.networks import lower_proto, names_of, run_lowered
from tests.tuner.networks.models import model, run
from tuner.engines.base import TargetInfo
from tuner.engines.relax.graph.extract import find_subgraphs

IMAGES: dict[str, object] = {"pads": [0, 1, 1, 0, 1, 1]}
DEPTH: dict[str, object] = {"pads": [1, 0, 0, 1, 0, 0]}


def block(
    data: tuple[int, ...], windows: list[tuple[int, int, int]], attributes: list[dict[str, object]]
) -> onnx.ModelProto:
    """Return a model of convolutions with ReLU after each, whose input is added before the last."""
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, Array] = {}
    value, n_channels = "data", data[1]
    for i, (window, each) in enumerate(zip(windows, attributes, strict=True)):
        n_inputs = n_channels // int(str(each.get("group", 1)))
        weights[f"w{i}"] = draw(8, n_inputs, *window, seed=i)
        nodes.append(helper.make_node("Conv", [value, f"w{i}"], [f"c{i}"], **each))
        value, n_channels = f"r{i}", 8
        if i == len(windows) - 1 and len(windows) > 1:
            nodes.append(helper.make_node("Add", [f"c{i}", "data"], ["sum"]))
            nodes.append(helper.make_node("Relu", ["sum"], [value]))
        else:
            nodes.append(helper.make_node("Relu", [f"c{i}"], [value]))
    made = model(nodes, {"data": data}, {value: None}, weights)
    return onnx.shape_inference.infer_shapes(made)


def ranks(proto: onnx.ModelProto, target: TargetInfo) -> list[int]:
    """Return the rank of the constant of each convolution of a lowered model."""
    return sorted(
        len(graph.module["main"].params[1].shape)
        for graph in find_subgraphs(lower_proto(proto, target.spec)[0])
        if "conv" in graph.name
    )


@pytest.mark.parametrize(
    ("shape", "window", "attributes", "rank"),
    [
        ((2, 8, 3, 6, 7), (1, 3, 3), {"pads": [0, 0, 1, 0, 2, 0], "strides": [1, 2, 2]}, 4),
        ((1, 8, 4, 5, 5), (1, 3, 3), {**IMAGES, "group": 2}, 4),
        # These windows read several images, or skip some.
        ((2, 8, 5, 4, 3), (3, 1, 1), DEPTH, 5),
        ((1, 8, 4, 5, 5), (1, 3, 3), {**IMAGES, "strides": [2, 1, 1]}, 5),
        ((1, 8, 4, 5, 5), (1, 3, 3), {"pads": [1, 1, 1, 1, 1, 1]}, 5),
    ],
)
def test_flat_windows_lose_an_axis(
    shape: tuple[int, ...],
    window: tuple[int, int, int],
    attributes: dict[str, object],
    rank: int,
    target: TargetInfo,
) -> None:
    """The outputs are those of ONNX Runtime, whatever the strides, groups and padding."""
    proto = block(shape, [window], [attributes])

    assert agrees(proto, draw(*shape, seed=9), target)
    assert ranks(proto, target) == [rank]


def test_a_block_of_flat_windows_has_no_copies(target: TargetInfo) -> None:
    """Reshapes before other convolutions, and before the sum, end no kernel."""
    proto = block((2, 8, 4, 6, 6), [(1, 3, 3), (3, 1, 1), (1, 3, 3)], [IMAGES, DEPTH, IMAGES])

    assert agrees(proto, draw(2, 8, 4, 6, 6, seed=9), target)
    names = [name for name in names_of(proto, target.spec) if "transpose" not in name]
    assert sorted(name.partition("[")[0] for name in names) == [
        "conv2d_add_relu",
        "conv2d_relu",
        "conv3d_relu",
    ]


def agrees(proto: onnx.ModelProto, data: Array, target: TargetInfo) -> bool:
    """Return whether a model computes what ONNX Runtime does."""
    (expected,) = run(proto.SerializeToString(), {"data": data})
    (actual,) = run_lowered(proto, {"data": data}, target.spec)
    return bool(np.abs(actual - expected).max() < 1e-5 * expected.std())
