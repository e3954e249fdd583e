"""A shape that is unknown is refused with the true reason, or with none."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.tuner.networks.models import model
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean


def refusal_of(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int | str, ...]]) -> ModelError:
    """Return the error for a model whose output ``y`` has no shape."""
    proto = model(nodes, inputs, {"y": ()})
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    for info in proto.graph.input:
        if info.name == "shape":
            info.type.tensor_type.elem_type = onnx.TensorProto.INT64
    with pytest.raises(ModelError) as caught:
        clean(proto)
    return caught.value


def test_an_inference_that_fails_is_not_data() -> None:
    """The line has the operator, its name, the shapes of its operands, and what onnx says."""
    bad = helper.make_node("Concat", ["x", "x"], ["a"], name="joint", axis=7)

    error = refusal_of([bad, helper.make_node("Exp", ["a"], ["y"])], {"x": (2, 3)})

    assert error.code == "invalid-model"
    assert "onnx infers none for Concat 'joint' of (2, 3), (2, 3): " in error.text
    assert "axis" in error.text
    assert "Error]" not in error.text
    assert "op_type" not in error.text


def test_operators_behind_others_are_no_tail_where_operands_do_not_fit() -> None:
    """Another runtime would refuse them when it runs."""
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Exp", ["c"], ["y"]),
    ]

    error = refusal_of(nodes, {"x": (2, 3), "b": (2, 4)})

    assert error.code == "invalid-model"
    assert "for Add of (2, 3), (2, 4): Incompatible dimensions" in error.text


def test_a_lost_operator_may_read_an_output() -> None:
    """Its type is that of the output, and the number of places is computed."""
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["scores"]),
        helper.make_node("Compress", ["scores", "chosen"], ["y"], axis=0),
        helper.make_node("Exp", ["y"], ["z"]),
    ]
    chosen = np.zeros(9, bool)
    proto = model(nodes, {"x": (9,), "chosen": chosen}, {"scores": (9,), "z": None})

    assert clean(proto).tail


def test_a_shape_that_is_computed_is_data() -> None:
    """An operand that gives lengths is named."""
    bad = helper.make_node("Reshape", ["x", "shape"], ["y"])

    error = refusal_of([bad], {"x": (2, 3), "shape": (2,)})

    assert error.code == "data-dependent-shape"
    assert "'shape'" in error.text


def test_an_operator_without_a_definition_is_named() -> None:
    """It is not known to the standard in this version, whatever it computes."""
    error = refusal_of([helper.make_node("GivenTensorFill", ["x"], ["y"])], {"x": (2, 3)})

    assert error.code == "unsupported-operator"
    assert "GivenTensorFill of (2, 3)" in error.text


def test_an_operator_of_one_operand_has_no_misfit() -> None:
    """The inference fails for its attributes, and engines split in equal parts."""
    proto = model(
        [helper.make_node("Split", ["x"], ["y", "z"])],
        {"x": (4, 3)},
        {"y": (2, 3), "z": (2, 3)},
        opset=18,
    )

    assert clean(proto).outputs["y"].shape == (2, 3)
