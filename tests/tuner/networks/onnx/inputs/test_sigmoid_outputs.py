"""The outputs that a Sigmoid computes are found behind operators that pass its elements on."""

import pytest
from onnx import TensorProto, helper

from tuner.networks.onnx.inputs.input_values import describe_onnx

_FLOAT = TensorProto.FLOAT


@pytest.mark.parametrize(
    ("kinds", "is_sigmoid"),
    [
        (["Sigmoid"], True),
        (["Sigmoid", "Transpose", "ReduceMax"], True),
        (["Relu", "Sigmoid", "Concat"], True),
        (["Relu"], False),
        (["Sigmoid", "Relu"], False),
        (["Sigmoid", "Log"], False),
    ],
)
def test_sigmoids_are_found_behind_views(kinds: list[str], *, is_sigmoid: bool) -> None:
    """Arithmetic behind a Sigmoid has the errors of arithmetic; other outputs are unaffected."""
    nodes = [
        helper.make_node(kind, ["x", f"v{i}"] if kind == "Concat" else [f"v{i}"], [f"v{i + 1}"])
        for i, kind in enumerate(kinds)
    ]
    names = ["other", f"v{len(kinds)}"]
    nodes.append(helper.make_node("Relu", ["x"], ["other"]))
    inputs = [helper.make_tensor_value_info(name, _FLOAT, [1, 4]) for name in ("x", "v0")]
    outputs = [helper.make_tensor_value_info(name, _FLOAT, None) for name in names]
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs))

    assert describe_onnx(model).sigmoids == ({1} if is_sigmoid else set())
