"""A grid of another type than the picture does not change the type of the samples."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.networks import run_lowered
from tests.tuner.networks import models
from tests.tuner.networks.models import run
from tuner.engines.base import TargetInfo


def test_a_grid_of_float64_samples_a_picture_of_float32(target: TargetInfo) -> None:
    """The samples are multiplied by numbers of float32."""
    data, grid = draw(1, 2, 5, 7), np.tanh(draw(1, 3, 4, 2))

    (actual,) = run_lowered(
        _samples(TensorProto.DOUBLE), {"data": data, "grid": grid.astype("float64")}, target.spec
    )

    # ONNX Runtime has no kernel with two types.
    proto = _samples(TensorProto.FLOAT).SerializeToString()
    (expected,) = run(proto, {"data": data, "grid": grid})
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def _samples(kind: int) -> onnx.ModelProto:
    """Make a model that multiplies samples by the mean of the picture."""
    return models.model(
        [
            helper.make_node("ReduceMean", ["data"], ["mean"]),
            helper.make_node("GridSample", ["data", "grid"], ["samples"]),
            helper.make_node("Mul", ["samples", "mean"], ["y"]),
        ],
        {"data": (1, 2, 5, 7), "grid": (1, 3, 4, 2)},
        {"y": (1, 2, 3, 4)},
        kinds={"grid": kind},
        opset=16,
    )
