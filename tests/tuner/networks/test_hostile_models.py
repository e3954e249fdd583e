"""Models that are made to break a loader are refused with a code."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.tuner.networks.models import model, relu_model
from tuner.errors import ModelError
from tuner.networks.load import load_network


def endless_loop() -> onnx.ModelProto:
    """Add the result of a loop over constants to the output: a few hundred bytes, hours of work."""
    infos = [("turn", TensorProto.INT64), ("go", TensorProto.BOOL), ("state", TensorProto.FLOAT)]
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "state"], ["next"])],
        "body",
        [helper.make_tensor_value_info(name, kind, []) for name, kind in infos],
        [
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, []),
        ],
    )
    nodes = [
        helper.make_node("Loop", ["turns", "", "begin"], ["looped"], body=body),
        helper.make_node("Add", ["data", "looped"], ["y"]),
    ]
    proto = model(nodes, {"data": (1,)}, {"y": (1,)})
    proto.graph.initializer.append(helper.make_tensor("turns", TensorProto.INT64, [], [2**62]))
    proto.graph.initializer.append(helper.make_tensor("begin", TensorProto.FLOAT, [], [1.0]))
    return proto


def recursive_function() -> onnx.ModelProto:
    """Define an operator by itself."""
    proto = relu_model(1)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    body = [helper.make_node("Own", ["x"], ["y"], domain="own")]
    proto.functions.append(helper.make_function("own", "Own", ["x"], ["y"], body, opsets))
    proto.opset_import.add(domain="own", version=1)
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "Own", "own"
    return proto


def function_with_too_many_operands() -> onnx.ModelProto:
    """Call a function of one operand with two."""
    proto = recursive_function()
    proto.functions[0].node[0].op_type, proto.functions[0].node[0].domain = "Relu", ""
    proto.graph.node[0].input.append("data")
    return proto


def unknown_type() -> onnx.ModelProto:
    """Give the input a type that ONNX does not have."""
    proto = relu_model(1)
    proto.graph.input[0].type.tensor_type.elem_type = 99
    return proto


def contradictory_shape() -> onnx.ModelProto:
    """Give the shape of a constant that weights are made from more numbers than it has."""
    proto = model([helper.make_node("ConstantOfShape", ["shape"], ["y"])], {}, {"y": (1,)})
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [1])
    shape.dims[0] = 2**62
    proto.graph.initializer.append(shape)
    return proto


@pytest.mark.parametrize(
    ("make", "code", "text"),
    [
        (endless_loop, "loop", "a Loop has 4611686018427387904 turns"),
        (recursive_function, "invalid-model", "must not be recursive"),
        (
            function_with_too_many_operands,
            "invalid-model",
            "model: Number of actual parameters",
        ),
        (unknown_type, "not-a-tensor", "'data' is not a tensor of numbers"),
        (contradictory_shape, "invalid-model", "the elements of weight 'shape' do not fit"),
    ],
)
def test_hostile_models_are_refused(
    tmp_path: Path, make: Callable[[], onnx.ModelProto], code: str, text: str
) -> None:
    """Each at once, by an error that names no line of a library."""
    path = tmp_path / "hostile.onnx"
    path.write_bytes(make().SerializeToString())

    with pytest.raises(ModelError, match=text) as caught:
        load_network(str(path), alone=True)

    assert caught.value.code == code
    assert "\n" not in str(caught.value)
