"""Samples have the type of the picture, whatever that of the grid, and short kernels."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.networks import lower_proto, run_lowered
from tests.tuner.networks import models
from tests.tuner.networks.models import run
from tuner.engines.base import TargetInfo


def test_a_grid_of_float64_samples_a_picture_of_float32(target: TargetInfo) -> None:
    """The samples are multiplied by numbers of float32."""
    # ONNX Runtime has no kernel with two types.
    _check(_samples(TensorProto.DOUBLE), _samples(TensorProto.FLOAT), "float64", target)


def test_reflected_samples_are_as_long_as_others(target: TargetInfo) -> None:
    """TVM's kernel reflects each of 16 pixels in each expression, and takes seconds to lower."""
    border, reflection = (
        _samples(TensorProto.FLOAT, mode="bicubic", padding_mode=mode, align_corners=1)
        for mode in ("border", "reflection")
    )

    _check(reflection, reflection, "float32", target)
    n_letters, n_of_border = (
        len(lower_proto(proto, target.spec)[0].script()) for proto in (reflection, border)
    )
    assert n_letters < 1.5 * n_of_border


def _samples(kind: int, **attributes: Any) -> onnx.ModelProto:
    """Make a model that multiplies samples by the mean of the picture."""
    return models.model(
        [
            helper.make_node("ReduceMean", ["data"], ["mean"]),
            helper.make_node("GridSample", ["data", "grid"], ["samples"], **attributes),
            helper.make_node("Mul", ["samples", "mean"], ["y"]),
        ],
        {"data": (1, 2, 5, 7), "grid": (1, 3, 4, 2)},
        {"y": (1, 2, 3, 4)},
        kinds={"grid": kind},
        opset=16,
    )


def _check(proto: onnx.ModelProto, same: onnx.ModelProto, dtype: str, target: TargetInfo) -> None:
    """Compare a model with a grid of a type with the same one in ONNX Runtime."""
    data, grid = draw(1, 2, 5, 7), draw(1, 3, 4, 2)

    (actual,) = run_lowered(proto, {"data": data, "grid": grid.astype(dtype)}, target.spec)

    (expected,) = run(same.SerializeToString(), {"data": data, "grid": grid})
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
