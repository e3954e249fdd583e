"""Activations of types that engines lack are computed by other operators."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.tuner.networks import models
from tests.tuner.networks.models import run
from tuner.networks.onnx.cleaning import clean


def one_node(op: str, dtype: str, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one activation of images."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return models.model(
        [helper.make_node(op, ["data"], ["y"], **attributes)],
        {"data": (2, 6, 3, 4)},
        {"y": (2, 6, 3, 4)},
        kinds={"data": kind, "y": kind},
        opset=20,
    )


_CASES = [
    ("Elu", {}),
    ("Elu", {"alpha": 0.5}),
    ("LRN", {"size": 3}),
    ("LRN", {"size": 5, "alpha": 0.5, "beta": 0.5, "bias": 2.0}),
    ("Selu", {}),
    ("Selu", {"alpha": 2.0, "gamma": 0.5}),
    ("ThresholdedRelu", {}),
    ("ThresholdedRelu", {"alpha": 0.25}),
]


@pytest.mark.parametrize(("op", "attributes"), _CASES)
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_types_than_float32_are_replaced(
    op: str, attributes: dict[str, Any], dtype: str
) -> None:
    """The type of the output stays; large values do not overflow."""
    proto = one_node(op, dtype, **attributes)
    data = (np.random.default_rng(0).standard_normal((2, 6, 3, 4)) * 4).astype(dtype)
    data[0, 0, 0, 0] = 800 if op != "LRN" else 8

    network = clean(proto)

    left = {node.op_type for node in onnx.load_from_string(network.model).graph.node}
    assert not left & {"Elu", "LRN", "Selu", "ThresholdedRelu"}
    actual = ReferenceEvaluator(onnx.load_from_string(network.model)).run(None, {"data": data})[0]
    # ONNX Runtime has these operators for float32 alone.
    single = one_node(op, "float32", **attributes).SerializeToString()
    expected = run(single, {"data": data.astype("float32")})[0]
    assert actual.dtype == dtype
    tolerance = 2e-3 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op", ["Elu", "LRN", "Selu", "ThresholdedRelu"])
def test_activations_of_float32_stay(op: str) -> None:
    """Engines have them."""
    network = clean(one_node(op, "float32", **({"size": 3} if op == "LRN" else {})))

    assert [node.op_type for node in onnx.load_from_string(network.model).graph.node] == [op]
