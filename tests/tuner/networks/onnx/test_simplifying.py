"""Constants are folded until nothing is left to fold."""

import numpy as np
import onnx
from onnx import helper

from tests.tuner.networks.models import difference, model, run
from tests.tuner.networks.padding import padding_layers
from tuner.networks.onnx.cleaning import clean

_N_LAYERS = 16


def test_a_length_that_follows_from_many_layers_is_known() -> None:
    """Each layer pads by one, and then to a multiple of its stride."""
    proto = padding_layers(_N_LAYERS)

    network = clean(proto)

    left = onnx.load_from_string(network.model).graph
    assert {node.op_type for node in left.node} == {"Pad"}
    feeds = {"x": np.arange(9, dtype="float32").reshape(1, 1, 9)}
    (expected,) = run(proto.SerializeToString(), feeds)
    (actual,) = run(network.model, feeds)
    assert actual.shape == (1, 1, 9 + 2 * _N_LAYERS)
    assert difference(actual, expected) == 0.0


def test_minus_zero_is_another_constant() -> None:
    """A quotient by minus zero has the other sign, and equal constants are merged."""
    nodes = [helper.make_node("Div", ["x", name], [f"by_{name}"]) for name in ("zero", "minus")]
    zeros = {"zero": np.zeros(2, "float32"), "minus": np.array([0.0, -0.0], "float32")}
    proto = model(nodes, {"x": (2,)}, {"by_zero": (2,), "by_minus": (2,)}, zeros)

    network = clean(proto)

    feeds = {"x": np.ones(2, "float32")}
    for actual, expected in zip(
        run(network.model, feeds), run(proto.SerializeToString(), feeds), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)
