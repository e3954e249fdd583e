"""Constants are folded until nothing is left to fold."""

import numpy as np
import onnx
from onnx import helper

from tests.tuner.networks.models import difference, model, run
from tuner.networks.onnx import clean

_N_LAYERS = 16


def test_a_length_that_follows_from_many_layers_is_known() -> None:
    """Each layer pads by one, and then to a multiple of its stride."""
    nodes, name = [], "x"
    for layer in range(_N_LAYERS):
        nodes += _padding_layer(name, f"layer{layer}")
        name = f"layer{layer}.y"
    weights = {
        "stride": np.array([2.0], "float32"),
        "axis": np.array([2]),
        "before": np.array([0, 0, 1, 0, 0]),
    }
    proto = model(nodes, {"x": (1, 1, 9)}, {name: (1, 1, "length")}, weights)

    network = clean(proto)

    left = onnx.load_from_string(network.model).graph
    assert {node.op_type for node in left.node} == {"Pad"}
    feeds = {"x": np.arange(9, dtype="float32").reshape(1, 1, 9)}
    (expected,) = run(proto.SerializeToString(), feeds)
    (actual,) = run(network.model, feeds)
    assert actual.shape == (1, 1, 9 + 2 * _N_LAYERS)
    assert difference(actual, expected) == 0.0


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
