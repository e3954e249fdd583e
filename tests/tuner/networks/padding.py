"""Models whose layers pad to lengths that they compute with floats."""

import numpy as np
import onnx
from onnx import helper

from tests.tuner.networks.models import model


def padding_layers(n_layers: int) -> onnx.ModelProto:
    """Make a model of layers that pad by one, and then to a multiple of their stride."""
    nodes, name = [], "x"
    for layer in range(n_layers):
        nodes += _padding_layer(name, f"layer{layer}")
        name = f"layer{layer}.y"
    weights = {
        "stride": np.array([2.0], "float32"),
        "axis": np.array([2]),
        "before": np.array([0, 0, 1, 0, 0]),
    }
    return model(nodes, {"x": (1, 1, 9)}, {name: (1, 1, "length")}, weights)


def _padding_layer(data: str, layer: str) -> list[onnx.NodeProto]:
    steps = [
        ("Shape", [data], {}),
        ("Gather", ["axis"], {}),
        ("Cast", [], {"to": onnx.TensorProto.FLOAT}),
        ("Div", ["stride"], {}),
        ("Ceil", [], {}),
        ("Mul", ["stride"], {}),
        ("Cast", [], {"to": onnx.TensorProto.INT64}),
        ("Sub", [f"{layer}.1"], {}),
    ]
    nodes, last = [], ""
    for index, (operator, operands, attributes) in enumerate(steps):
        inputs = [last, *operands] if last else operands
        last = f"{layer}.{index}"
        nodes.append(helper.make_node(operator, inputs, [last], **attributes))
    pads = f"{layer}.pads"
    nodes.append(helper.make_node("Concat", ["before", last], [pads], axis=0))
    return [*nodes, helper.make_node("Pad", [data, pads], [f"{layer}.y"])]
