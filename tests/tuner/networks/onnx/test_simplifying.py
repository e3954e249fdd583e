"""Constants are folded until nothing is left to fold."""

import numpy as np
import onnx

from tests.tuner.networks.models import difference, run
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
