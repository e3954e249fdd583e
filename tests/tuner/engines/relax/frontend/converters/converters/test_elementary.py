"""Bounds, slopes and paddings agree with ONNX Runtime, and leave convolutions channels last."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from tvm import relax

from tests.tuner.engines.relax.conftest import Array, Save, draw
from tests.tuner.engines.relax.networks import run_lowered, run_network
from tests.tuner.engines.relax.test_lowering import names_of
from tests.tuner.networks import models
from tuner.engines.base import TargetInfo
from tuner.engines.relax.frontend.onnx_graph import import_graph
from tuner.engines.relax.graph.layout.assignment import assign_layouts

_PADS = np.array([0, 0, 1, 2, 0, 0, 2, 1])


def bounds(*values: float | None) -> tuple[list[str], dict[str, Array]]:
    """Return the inputs of Clip behind the first, and their values."""
    arrays = {f"c{i}": np.array(v, "float32") for i, v in enumerate(values) if v is not None}
    return [f"c{i}" if v is not None else "" for i, v in enumerate(values)], arrays


Case = tuple[int, str, list[str], dict[str, Any], dict[str, Array]]

CASES: dict[str, Case] = {
    "attributes": (6, "Clip", [], {"min": -0.5, "max": 0.25}, {}),
    "bounds": (13, "Clip", bounds(-0.5, 0.25)[0], {}, bounds(-0.5, 0.25)[1]),
    "upper bound": (13, "Clip", bounds(None, 0.25)[0], {}, bounds(None, 0.25)[1]),
    "one slope": (16, "PRelu", ["s"], {}, {"s": np.array([0.25], "float32")}),
    "slopes of channels": (9, "PRelu", ["s"], {}, {"s": draw(8, 1, 1, seed=3)}),
    "slopes of columns": (16, "PRelu", ["s"], {}, {"s": draw(7, seed=3)}),
    "a sum": (
        *(13, "Sum", ["s", "t"], {}),
        {"s": draw(8, 1, 1, seed=3), "t": draw(2, 8, 6, 7, seed=4)},
    ),
    "a constant": (13, "Pad", ["p", "v"], {}, {"p": _PADS, "v": np.array(1.5, "float32")}),
    "negative": (13, "Pad", ["p"], {}, {"p": np.array([0, 0, -1, 0, 0, 0, 1, -1])}),
    "reflection": (13, "Pad", ["p"], {"mode": "reflect"}, {"p": _PADS}),
    "edges": (13, "Pad", ["p"], {"mode": "edge"}, {"p": _PADS}),
    "axes": (
        18,
        "Pad",
        ["p", "", "a"],
        {"mode": "edge"},
        {"p": np.array([1, 2]), "a": np.array([-1])},
    ),
}


def model_of(case: Case) -> onnx.ModelProto:
    """Return the model of the operator between two convolutions."""
    opset, op, names, attributes, arrays = case
    nodes = [
        helper.make_node("Conv", ["data", "w"], ["x"]),
        helper.make_node(op, ["x", *names], ["m"], **attributes),
        helper.make_node("Conv", ["m", "u"], ["y"]),
    ]
    weights = {"w": draw(8, 3, 3, 3), "u": draw(4, 8, 3, 3, seed=1)} | arrays
    return models.model(nodes, {"data": (2, 3, 8, 9)}, {"y": None}, weights, opset=opset)


@pytest.mark.parametrize("case", CASES)
def test_operator_between_convolutions_needs_no_transpose(case: str) -> None:
    """Only input and output are transposed, and the output equals ONNX Runtime's."""
    model = model_of(CASES[case])
    data = draw(2, 3, 8, 9, seed=2)

    module = assign_layouts(import_graph(model))

    assert module.script().count("permute_dims(") <= 2
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"data": data})
    (actual,) = run_network(module, data)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1,), (8, 1, 1)])
def test_slopes_are_fused_into_the_convolution(
    shape: tuple[int, ...], save: Save, target: TargetInfo
) -> None:
    """A convolution and its PRelu are one kernel."""
    nodes = [
        helper.make_node("Conv", ["data", "w"], ["x"]),
        helper.make_node("PRelu", ["x", "s"], ["y"]),
    ]
    weights = {"w": draw(8, 3, 3, 3), "s": draw(*shape, seed=1)}

    names = names_of(save(nodes, (2, 3, 8, 9), weights), target)

    assert [name.split("_")[0] for name in names if "transpose" not in name] == ["conv2d"]


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("n_rows", [4, 8])
def test_slopes_of_old_models_are_those_of_the_channels(
    target: TargetInfo, opset: int, n_rows: int
) -> None:
    """Versions below 7 do not broadcast; ONNX Runtime refuses them."""
    slopes, data = draw(8, seed=3), draw(2, 8, 5, n_rows, seed=2)
    node = helper.make_node("PRelu", ["data", "s"], ["y"])
    inputs: dict[str, models.Spec] = {"data": data.shape, "s": slopes.shape}
    model = models.model([node], inputs, {"y": data.shape}, {"s": slopes}, opset=opset)

    (actual,) = run_lowered(model, {"data": data}, target.spec)

    expected = np.where(data < 0.0, data * slopes.reshape(8, 1, 1), data)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_bound_of_nan_is_none() -> None:
    """A bound that is NaN changes nothing, as in ONNX Runtime."""
    builder = relax.BlockBuilder()
    from tuner.engines.relax.frontend.converters.elementary import convert_clip

    data = relax.Var("data", relax.TensorType((2,), "float32"))
    nan = relax.const(np.array(np.nan, "float32"))

    assert convert_clip(builder, [data, nan, nan], {}, 13).same_as(data)
