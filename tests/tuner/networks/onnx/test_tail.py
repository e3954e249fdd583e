"""Operators whose shapes depend on data are split off, and compute what they did in the model."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.tuner.networks.detectors import detector, feeds
from tests.tuner.networks.models import Array, model, run
from tuner.errors import ModelError
from tuner.networks.base import Network
from tuner.networks.onnx.cleaning import clean
from tuner.networks.onnx.inputs.input_values import describe_onnx
from tuner.networks.onnx.tail import tail_of, with_tail


def outputs_of(network: Network, arrays: dict[str, Array]) -> list[Array]:
    """Run the compiled part of a network, then its tail, under ONNX Runtime."""
    assert network.tail is not None
    values = {**arrays, **run_named(onnx.ModelProto.FromString(network.model), arrays)}
    stored = tail_of(onnx.ModelProto.FromString(network.model))
    values |= run_named(onnx.ModelProto.FromString(stored), values)
    return [values[name] for name in network.outputs]


def run_named(proto: onnx.ModelProto, arrays: dict[str, Array]) -> dict[str, Array]:
    """Run a model on those of some arrays that it reads."""
    given = {info.name: arrays[info.name] for info in proto.graph.input}
    names = [info.name for info in proto.graph.output]
    return dict(zip(names, run(proto.SerializeToString(), given), strict=True))


def check(proto: onnx.ModelProto, arrays: dict[str, Array]) -> Network:
    """Check that a model computes the same after it was split, and return it."""
    network = clean(proto)
    expected = run(proto.SerializeToString(), arrays)
    for actual, one in zip(outputs_of(network, arrays), expected, strict=True):
        assert actual.shape == one.shape
        np.testing.assert_allclose(actual, one, rtol=1e-5)
    joined = with_tail(onnx.ModelProto.FromString(network.model))
    assert [info.name for info in joined.graph.output] == list(network.outputs)
    onnx.checker.check_model(joined)
    return network


@pytest.mark.parametrize("limit", [0.5, 2.0])
def test_a_detector_is_split_in_front_of_its_suppression(limit: float) -> None:
    """Outputs keep their order; one input is read by the tail alone, and nothing may be kept."""
    network = check(detector(), feeds(limit))

    assert network.tail is not None
    assert network.tail.first == "NonMaxSuppression"
    assert (network.tail.n_operators, network.tail.n_all) == (3, 7)
    assert network.tail.returned == ("scores", "boxes")
    assert "3 of 7 operators (43%), from NonMaxSuppression on" in network.tail.note
    assert list(network.inputs) == ["data", "limit"]
    assert list(network.outputs) == ["kept", "scores", "places"]
    assert network.outputs["kept"].shape == (1, -1, 4)


def test_what_follows_inside_of_a_model_is_part_of_the_tail() -> None:
    """Layers behind the choice run after the library, though their output has a fixed shape."""
    proto = detector(
        helper.make_node("MatMul", ["kept", "head"], ["features"]),
        helper.make_node("ReduceMax", ["features"], ["y"], axes=[1], keepdims=0),
        y=(1, 3),
    )
    head = np.random.default_rng(1).random((4, 3), dtype=np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(head, "head"))

    network = check(proto, feeds())

    assert network.tail is not None
    assert network.tail.returned == ("boxes", "scores")
    assert network.outputs["y"].shape == (1, 3)


def test_branches_behind_the_choice_stay_branches() -> None:
    """They may read values of the compiled part, and have outputs of different shapes."""
    outputs = [helper.make_tensor_value_info("value", TensorProto.FLOAT, None)]
    empty = [helper.make_node("Identity", ["scores"], ["value"])]
    full = [helper.make_node("Identity", ["kept"], ["value"])]
    branches = {
        name: helper.make_graph(nodes, name, [], outputs)
        for name, nodes in (("then_branch", empty), ("else_branch", full))
    }
    proto = detector(
        helper.make_node("Size", ["places"], ["size"]),
        helper.make_node("Equal", ["size", "none"], ["is_empty"]),
        helper.make_node("If", ["is_empty"], ["y"], **branches),
        y=("a", "b", "c"),
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0), "none"))

    for limit in (0.5, 2.0):
        assert check(proto, feeds(limit)).tail is not None


@pytest.mark.parametrize("op", ["NonZero", "Compress", "Unique"])
def test_each_operator_that_chooses_begins_a_tail(op: str) -> None:
    """The library computes its operands."""
    operands = ["flat", "taken"] if op == "Compress" else ["flat"]
    nodes = [
        helper.make_node("Relu", ["data"], ["positive"]),
        helper.make_node("Reshape", ["positive", "shape"], ["flat"]),
        helper.make_node("Greater", ["flat", "half"], ["taken"]),
        helper.make_node(op, operands, ["found"]),
        helper.make_node("Cast", ["found"], ["y"], to=TensorProto.FLOAT),
    ]
    weights = {"shape": np.array([-1]), "half": np.array(0.5, "float32")}
    proto = model(nodes, {"data": (3, 4)}, {"y": ("k",)}, weights)
    if op == "NonZero":
        proto.graph.output[0].CopyFrom(
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ("r", "k"))
        )

    data = np.random.default_rng(2).standard_normal((3, 4)).astype("float32")
    network = check(proto, {"data": data})

    assert network.tail is not None
    assert network.tail.first == op


def test_a_length_that_is_computed_from_data_begins_a_tail() -> None:
    """Other operators without a fixed shape are treated as those that choose."""
    nodes = [
        helper.make_node("Relu", ["data"], ["positive"]),
        helper.make_node("ReduceMax", ["positive"], ["largest"], keepdims=0),
        helper.make_node("Cast", ["largest"], ["n"], to=TensorProto.INT64),
        helper.make_node("Range", ["zero", "n", "one"], ["steps"]),
        helper.make_node("Cast", ["steps"], ["y"], to=TensorProto.FLOAT),
    ]
    weights = {"zero": np.array(0), "one": np.array(1)}
    proto = model(nodes, {"data": (4,)}, {"y": ("k",)}, weights)

    network = check(proto, {"data": np.array([1, 5, 3, 2], "float32")})

    assert network.tail is not None
    assert network.tail.first == "Range"


def choice_beside(
    *nodes: onnx.NodeProto,
    weights: dict[str, Array] | None = None,
    places: tuple[int | str, ...] = (2, "k"),
    **outputs: tuple[int | str, ...],
) -> onnx.ModelProto:
    """Make a model that returns where data is positive, and what more nodes compute of it.

    Args:
        nodes: Nodes behind ``positive`` of shape (3, 4), and ``n``, a whole number made of it.
        weights: Their constants; ``zero`` and ``one`` are there.
        places: Declared shape of the chosen places.
        outputs: Shapes of their outputs by name, which are integers.
    """
    common = [
        helper.make_node("Relu", ["data"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["places"]),
        helper.make_node("ReduceMax", ["positive"], ["largest"], keepdims=0),
        helper.make_node("Cast", ["largest"], ["n"], to=TensorProto.INT64),
    ]
    weights = {"zero": np.array(0), "one": np.array(1), **(weights or {})}
    proto = model([*common, *nodes], {"data": (3, 4)}, {"places": places, **outputs}, weights)
    for info in proto.graph.output:
        info.type.tensor_type.elem_type = TensorProto.INT64
    return proto


def random_data() -> dict[str, Array]:
    """Return the input of :func:`choice_beside`."""
    data = 3 * np.random.default_rng(4).standard_normal((3, 4))
    return {"data": data.astype("float32")}


def test_an_output_without_a_fixed_shape_beside_a_choice_is_of_the_tail() -> None:
    """The tail begins at both."""
    proto = choice_beside(helper.make_node("Range", ["zero", "n", "one"], ["steps"]), steps=("k",))

    network = check(proto, random_data())

    assert network.tail is not None
    assert network.tail.n_operators == 2
    assert list(network.outputs) == ["places", "steps"]


def test_an_output_without_elements_beside_a_choice_is_of_the_tail() -> None:
    """No kernel could compute it."""
    proto = choice_beside(
        helper.make_node("Cast", ["positive"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Slice", ["whole", "start", "start"], ["nothing"]),
        weights={"start": np.array([0])},
        nothing=(0, 4),
    )

    assert check(proto, random_data()).tail is not None


def test_branches_of_different_shapes_beside_a_choice_are_refused() -> None:
    """They are not of the tail, and nothing selects between them."""
    outputs = [helper.make_tensor_value_info("value", TensorProto.INT64, None)]
    full = [helper.make_node("Shape", ["positive"], ["value"])]
    half = [helper.make_node("Shape", ["positive"], ["value"], start=1)]
    branches = {
        name: helper.make_graph(nodes, name, [], outputs)
        for name, nodes in (("then_branch", full), ("else_branch", half))
    }
    proto = choice_beside(
        helper.make_node("Cast", ["n"], ["is_full"], to=TensorProto.BOOL),
        helper.make_node("If", ["is_full"], ["y"], **branches),
        y=("a",),
    )

    with pytest.raises(ModelError, match=r"output 'y' comes from a branch \(If\)"):
        clean(proto)


def test_a_declared_size_of_a_choice_is_not_trusted() -> None:
    """Exporters declare the size of one run."""
    network = check(choice_beside(places=(2, 5)), random_data())

    assert network.tail is not None
    assert network.outputs["places"].shape == (2, -1)


def test_a_declared_size_does_not_hide_that_nothing_can_be_compiled() -> None:
    """The operator is named."""
    proto = model([helper.make_node("NonZero", ["data"], ["y"])], {"data": (4,)}, {"y": (1, 2)})
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64

    with pytest.raises(ModelError, match="nothing in front of NonZero"):
        clean(proto)


def test_constants_among_the_outputs_keep_their_shape() -> None:
    """The tail passes them on."""
    pair = np.array([1, 2])

    network = check(choice_beside(weights={"pair": pair}, pair=(2,)), random_data())

    assert network.outputs["pair"].shape == (2,)


def test_a_value_without_a_fixed_shape_beside_a_choice_is_of_the_tail() -> None:
    """No kernel could compute it, though the output that depends on it has a fixed shape."""
    proto = choice_beside(
        helper.make_node("Range", ["zero", "n", "one"], ["steps"]),
        helper.make_node("ReduceSum", ["steps"], ["total"], keepdims=0),
        total=(),
    )

    network = check(proto, random_data())

    assert network.tail is not None
    assert network.tail.n_operators == 3
    assert network.outputs["total"].shape == ()


def test_omitted_operands_and_outputs_are_not_values() -> None:
    """They all have the empty name, on both sides of the cut."""
    rng = np.random.default_rng(5)
    nodes = [
        helper.make_node("LSTM", ["data", "w", "r"], ["", "h"], hidden_size=5),
        helper.make_node("Relu", ["h"], ["positive"]),
        helper.make_node("Unique", ["positive"], ["values", "", "inverse"]),
        helper.make_node("Cast", ["inverse"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Clip", ["floats", "", "limit"], ["y"]),
    ]
    weights = {
        "w": rng.random((1, 20, 4), dtype=np.float32),
        "r": rng.random((1, 20, 5), dtype=np.float32),
        "limit": np.array(2, "float32"),
    }
    proto = model(nodes, {"data": (3, 2, 4)}, {"y": ("k",), "values": ("u",)}, weights)

    network = check(proto, {"data": rng.random((3, 2, 4), dtype=np.float32)})

    assert network.tail is not None
    assert "" not in network.tail.returned
    joined = with_tail(onnx.ModelProto.FromString(network.model))
    assert "Unique" in {node.op_type for node in joined.graph.node}


@pytest.mark.parametrize("source", ["x", "r"])
def test_an_input_among_the_outputs_is_read_once(source: str) -> None:
    """The tail gets an input that is an output too once, whether it chooses in it or behind it."""
    proto = model(
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("NonZero", [source], ["places"])],
        {"x": (2, 3)},
        {"x": (2, 3)},
    )
    if source == "x":
        proto.graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, (2, 3)))
    places = helper.make_tensor_value_info("places", TensorProto.INT64, (2, "n"))
    proto.graph.output.append(places)

    network = check(proto, {"x": np.array([[1, 0, -2], [0, 3, 4]], "float32")})

    assert network.tail is not None
    assert network.tail.returned == ("x", "r")
    assert network.outputs["x"].shape == (2, 3)


def test_networks_that_differ_in_the_tail_alone_are_two() -> None:
    """The tail is part of the bytes that identify a network; names of nodes are not."""
    other, renamed = detector(), detector()
    (iou,) = (each for each in other.graph.initializer if each.name == "iou")
    iou.CopyFrom(onnx.numpy_helper.from_array(np.array([0.6], "float32"), "iou"))
    renamed.producer_name = "another"

    networks = [clean(proto) for proto in (detector(), renamed, other)]

    assert networks[0].sha256 == networks[1].sha256 != networks[2].sha256


def test_facts_about_a_model_are_those_of_all_its_operators() -> None:
    """The position of an output of a Sigmoid is that among the outputs of the model."""
    network = clean(detector())

    facts = describe_onnx(with_tail(onnx.ModelProto.FromString(network.model)))

    assert facts.sigmoids == {1}


def test_an_unknown_operator_behind_the_choice_is_refused() -> None:
    """No runtime would run the tail."""
    proto = detector(helper.make_node("Foo", ["kept"], ["y"], domain="com.acme"), y=("k",))

    with pytest.raises(ModelError, match=r"without a converter: com\.acme\.Foo") as caught:
        clean(proto)
    assert caught.value.code == "unsupported-operator"


def test_a_choice_among_the_inputs_leaves_nothing_to_compile() -> None:
    """The model is refused with the operator."""
    proto = model([helper.make_node("NonZero", ["data"], ["y"])], {"data": (4,)}, {"y": (1, "k")})
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64

    with pytest.raises(ModelError, match="nothing in front of NonZero") as caught:
        clean(proto)
    assert caught.value.code == "data-dependent-shape"
