"""Transposed convolutions become convolutions, quantised ones too."""

import numpy as np
import pytest
from onnx import helper

from tests.tuner.engines.relax.networks import names_of, run_lowered
from tests.tuner.networks.models import model, run

_ANY = '{"kind":"llvm","num-cores":2}'
# One with an instruction for bytes, and one without.
_TARGETS = ('{"kind":"llvm","mcpu":"icelake-server","num-cores":2}', _ANY)


@pytest.mark.parametrize("channels", [1, 4], ids=["one-scale", "scales"])
def test_a_quantised_weight(channels: int) -> None:
    """TVM's own definition multiplies with the zeros between pixels, serially without a record."""
    nodes = [
        helper.make_node("QuantizeLinear", ["data", "step", "middle"], ["codes"]),
        helper.make_node("DequantizeLinear", ["codes", "step", "middle"], ["values"]),
        helper.make_node("DequantizeLinear", ["bytes", "scale", "zero"], ["weight"], axis=1),
        helper.make_node("ConvTranspose", ["values", "weight"], ["y"], strides=[2, 2]),
    ]
    rng = np.random.default_rng(0)
    scales, zeros = np.linspace(0.01, 0.03, 4), np.arange(4)
    constants = {
        "step": np.float32(0.02),
        "middle": np.int8(3),
        "bytes": rng.integers(-128, 128, (3, 4, 2, 2)).astype("int8"),
        "scale": np.float32(scales[0]) if channels == 1 else scales.astype("float32"),
        "zero": np.int8(5) if channels == 1 else zeros.astype("int8"),
    }
    weights = {name: np.asarray(each) for name, each in constants.items()}
    proto = model(nodes, {"data": (1, 3, 8, 8)}, {"y": (1, 4, 16, 16)}, weights)
    feeds = {"data": rng.standard_normal((1, 3, 8, 8), dtype=np.float32)}

    for target in _TARGETS:
        assert not [name for name in names_of(proto, target) if "conv2d_transpose" in name]
    (actual,) = run_lowered(proto, feeds, _ANY)
    np.testing.assert_allclose(actual, run(proto.SerializeToString(), feeds)[0], atol=1e-4)
