"""Operators with a standard body are inlined, whatever they leave out."""

from collections.abc import Iterator
from itertools import count

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.networks import models
from tests.tuner.networks.models import run
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean
from tuner.networks.onnx.functions import align_functions


def test_attention_with_a_past_and_without_a_mask() -> None:
    """The mask lies between operands that are given."""
    rng = np.random.default_rng(0)
    shapes = {"q": (1, 4, 3, 8), "k": (1, 2, 3, 8), "v": (1, 2, 3, 8)}
    shapes |= {"past_k": (1, 2, 5, 8), "past_v": (1, 2, 5, 8)}
    feeds = {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    slots = ["q", "k", "v", "", "past_k", "past_v"]
    outputs = {"y": (1, 4, 3, 8), "keys": (1, 2, 8, 8), "values": (1, 2, 8, 8)}
    proto = models.model(
        [helper.make_node("Attention", slots, [*outputs], is_causal=1)], shapes, outputs, opset=23
    )

    actual = run(clean(proto).model, feeds)

    for one, other in zip(actual, run(proto.SerializeToString(), feeds), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_rotation_of_whole_heads_leaves_no_empty_value() -> None:
    """The rest of a head, which its body concatenates, has no elements."""
    tables = {name: np.ones((4, 4), "float32") for name in ("cos", "sin")}
    data = np.arange(64, dtype="float32").reshape(1, 2, 4, 8)
    places = np.array([[0, 1, 2, 3]])
    graph = helper.make_graph(
        [helper.make_node("RotaryEmbedding", ["data", *tables, "places"], ["y"])],
        "test",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, data.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, data.shape)],
        [numpy_helper.from_array(each, name) for name, each in tables.items()]
        + [numpy_helper.from_array(places, "places")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)

    network = clean(proto)

    cleaned = onnx.shape_inference.infer_shapes(onnx.load_from_string(network.model))
    shapes = [info.type.tensor_type.shape.dim for info in cleaned.graph.value_info]
    assert all(dim.dim_value for dims in shapes for dim in dims)
    expected = run(proto.SerializeToString(), {"data": data})[0]
    np.testing.assert_allclose(run(network.model, {"data": data})[0], expected)


def test_attributes_that_are_left_out_have_their_defaults() -> None:
    """The inliner leaves a Constant without a value in their place."""
    data = np.array([[-2.0, 0.5, 3.0]], "float32")
    proto = models.model(
        [helper.make_node("Swish", ["data"], ["y"])],
        {"data": data.shape},
        {"y": ("n", 3)},
        opset=24,
    )

    actual = run(clean(proto).model, {"data": data})[0]

    np.testing.assert_allclose(actual, data / (1 + np.exp(-data)), rtol=1e-6)


def test_a_function_of_another_opset_is_inlined_with_its_defaults() -> None:
    """The inliner leaves it, though its operators are the same in both, and drops its defaults."""
    data = np.array([[-2.0, 0.5, 3.0]], "float32")
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Twice", ["data"], ["y"], domain="own")],
        "test",
        [info("data", TensorProto.FLOAT, data.shape)],
        [info("y", TensorProto.FLOAT, data.shape)],
    )
    nodes = [helper.make_node("Add", ["x", "x"], ["t"]), helper.make_node("Elu", ["t"], ["z"])]
    nodes[1].attribute.add(name="alpha", ref_attr_name="scale", type=onnx.AttributeProto.FLOAT)
    opsets, defaults = [helper.make_opsetid("", 17)], [helper.make_attribute("scale", 0.5)]
    twice = helper.make_function(
        "own", "Twice", ["x"], ["z"], nodes, opsets, attribute_protos=defaults
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, functions=[twice], ir_version=9)

    network = clean(proto)

    nodes = onnx.load_from_string(network.model).graph.node
    assert [node.op_type for node in nodes] == ["Add", "Elu"]
    expected = np.where(data > 0, 2 * data, 0.5 * np.expm1(2 * data))
    np.testing.assert_allclose(run(network.model, {"data": data})[0], expected, rtol=1e-6)


def test_a_default_of_an_inner_function_is_not_lost() -> None:
    """The inliner takes an attribute that is passed on as given, and the operator its own."""
    opsets, defaults = [helper.make_opsetid("", 17)], [helper.make_attribute("scale", 0.5)]
    elu, call = (helper.make_node(name, ["x"], ["z"]) for name in ("Elu", "Inner"))
    call.domain = "own"
    elu.attribute.add(name="alpha", ref_attr_name="scale", type=onnx.AttributeProto.FLOAT)
    call.attribute.add(name="scale", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    inner = helper.make_function("own", "Inner", ["x"], ["z"], [elu], opsets, [], defaults)
    opsets = [*opsets, helper.make_opsetid("own", 1)]
    outer = helper.make_function("own", "Outer", ["x"], ["z"], [call], opsets, ["slope"])
    node = helper.make_node("Outer", ["data"], ["y"], domain="own")
    proto = models.model([node], {"data": (2,)}, {"y": (2,)}, opset=17)
    proto.functions.extend([inner, outer])
    proto.opset_import.append(opsets[1])

    with pytest.raises(ModelError, match="a call of Outer leaves out slope"):
        clean(proto)

    proto.graph.node[0].attribute.append(helper.make_attribute("slope", 0.25))
    assert run(clean(proto).model, {"data": np.full(2, -1, "float32")})[0][0] == pytest.approx(
        0.25 * np.expm1(-1)
    )


def test_a_function_of_an_opset_with_another_operator_keeps_it() -> None:
    """From opset 18 on, a mean takes its axes as an input."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["z"], axes=[1])]
    mean = helper.make_function("own", "Mean", ["x"], ["z"], nodes, [helper.make_opsetid("", 17)])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    graph = helper.make_graph([], "test", [], [])
    proto = helper.make_model(graph, opset_imports=opsets, functions=[mean], ir_version=9)

    align_functions(proto)

    assert proto.functions[0].opset_import[0].version == 17


@pytest.mark.parametrize(
    ("n_levels", "n_calls", "message"),
    [
        (30, 2, r"stand for 1073741824 operators"),
        (2000, 1, r"call others over more than 100 levels"),
    ],
)
def test_functions_that_stand_for_too_much_are_refused(
    n_levels: int, n_calls: int, message: str
) -> None:
    """Each level of functions calls the one below; thirty levels of two would need all memory."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    functions = [helper.make_function("own", "F0", ["x"], ["y"], nodes, opsets)]
    for i in range(n_levels):
        calls = [helper.make_node(f"F{i}", ["x"], [made], domain="own") for made in "yt"[:n_calls]]
        functions.append(helper.make_function("own", f"F{i + 1}", ["x"], ["y"], calls, opsets))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    call = helper.make_node(f"F{n_levels}", ["x"], ["y"], domain="own")
    graph = helper.make_graph([call], "nested", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)

    with pytest.raises(ModelError, match=message) as refused:
        clean(model)
    assert refused.value.code == "too-large"


def _nested_ifs(depth: int, names: Iterator[int]) -> onnx.GraphProto:
    name = f"v{next(names)}"
    info = helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
    node = helper.make_node("Neg", ["x"], [name])
    if depth:
        branches = {f"{n}_branch": _nested_ifs(depth - 1, names) for n in ("then", "else")}
        node = helper.make_node("If", ["c"], [name], **branches)
    return helper.make_graph([node], name, [], [info])


def test_too_many_branches_are_refused() -> None:
    """Nested conditions double with each level: 4 MB of them held a core for minutes."""
    graph = _nested_ifs(12, count())
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]))
    graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    opsets = [helper.make_opsetid("", 17)]

    with pytest.raises(ModelError, match=r"8190 branches") as refused:
        clean(helper.make_model(graph, opset_imports=opsets, ir_version=9))
    assert refused.value.code == "too-large"
