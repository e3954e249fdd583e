"""Operands that do not fit together are refused before kernels read beyond them."""

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.tuner.networks.models import model
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean

_LSTM = {"w": np.ones((1, 12, 2), "float32"), "r": np.ones((1, 12, 3), "float32")}


@pytest.mark.parametrize(
    ("op", "data", "other", "attributes"),
    [
        ("GatherElements", (2, 3), (4, 3), {"axis": 1}),
        ("ScatterElements", (2, 3), (2, 4), {"axis": 0}),
        ("GatherND", (1, 3), (3, 1, 1), {"batch_dims": 1}),
        ("InstanceNormalization", (1, 4, 2, 2), (2,), {}),
        ("MaxUnpool", (1, 1, 2, 2), (1, 1, 1, 1), {"kernel_shape": [2, 2]}),
        ("ReverseSequence", (4, 3), (2,), {"time_axis": 0, "batch_axis": 1}),
        ("ReverseSequence", (4, 3), (3,), {"time_axis": 0, "batch_axis": 5}),
        ("ReverseSequence", (4, 3), (4,), {"time_axis": 1, "batch_axis": -2}),
        ("LSTM", (4, 3, 2), (2,), {"hidden_size": 3}),
        ("LSTM", (4,), (3,), {"hidden_size": 3}),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    op: str, data: tuple[int, ...], other: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    """ONNX Runtime refuses them when it runs, or a GPU does."""
    inputs: dict[str, Any] = {"x": data, "i": np.zeros(other, "int64")}
    names, weights = ["x", "i"], {}
    if op == "LSTM":
        names, weights = ["x", "w", "r", "", "i"], _LSTM
        inputs["i"] = inputs["i"].astype("int32")
    elif op == "InstanceNormalization":
        names, weights = ["x", "s", "s"], {"s": np.ones(other, "float32")}
        del inputs["i"]
    elif op == "ScatterElements":
        names.append("u")
        inputs["u"] = other
    node = helper.make_node(op, names, ["y"], **attributes)

    with pytest.raises(ModelError, match=rf"{op} 'y' has operands of the shapes") as caught:
        clean(model([node], inputs, {"y": None}, weights))

    assert caught.value.code == "invalid-model"


def test_an_axis_of_indices_may_be_longer_than_that_of_the_data() -> None:
    """It is the axis that indices are of; along others, they may be fewer."""
    node = helper.make_node("GatherElements", ["x", "i"], ["y"], axis=1)

    network = clean(model([node], {"x": (2, 3), "i": np.zeros((1, 7), "int64")}, {"y": (1, 7)}))

    assert network.outputs["y"].shape == (1, 7)
