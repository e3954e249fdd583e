"""Random weights are seeded, replace placeholders of every kind, and are recommended if needed."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.tuner.networks.models import Array, model
from tuner.networks.weights import is_degenerate, randomise_weights


def conv_model(weight: Array) -> onnx.ModelProto:
    """Make a convolution with a batch norm."""
    norm = {f"n{i}": np.ones(8, np.float32) for i in range(4)}
    nodes = [
        helper.make_node("Conv", ["data", "w"], ["x"]),
        helper.make_node("BatchNormalization", ["x", *norm], ["y"]),
    ]
    shape = (1, 8, 5, 5)
    return model(nodes, {"data": (1, 4, 5, 5)}, {"y": shape}, {"w": weight, **norm})


def test_constant_weights_are_degenerate() -> None:
    """Only weights of a single value count; constant batch norms are common."""
    rng = np.random.default_rng(0)
    assert is_degenerate(conv_model(np.full((8, 4, 3, 3), 0.02, np.float32)))
    assert not is_degenerate(conv_model(rng.random((8, 4, 3, 3), dtype=np.float32)))


def test_a_seed_fixes_the_weights() -> None:
    """Equal seeds give equal bytes, different seeds differ; the original is unchanged."""
    proto = conv_model(np.full((8, 4, 1, 1), 0.02, np.float32))
    before = proto.SerializeToString(deterministic=True)

    first, again, other = (
        randomise_weights(proto, seed).SerializeToString(deterministic=True) for seed in (1, 1, 2)
    )

    assert first == again != other
    assert proto.SerializeToString(deterministic=True) == before


def test_weights_follow_he_and_variances_stay_positive() -> None:
    """Variance 1 / fan-in for an input of mean square 1."""
    result = randomise_weights(conv_model(np.zeros((8, 400, 3, 3), np.float32)), 0)

    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in result.graph.initializer}
    np.testing.assert_allclose(arrays["w"].var() * 3600, 1.0, rtol=0.05)
    assert (arrays["n3"] > 0).all()
    assert all(array.dtype == np.float32 for array in arrays.values())
