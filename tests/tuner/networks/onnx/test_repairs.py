"""Files that ONNX Runtime reads are repaired where they have one meaning, and refused elsewhere."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.networks.models import Array, model, relu_model, run
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean

_DATA = np.array([[1, -2, 3], [4, 5, -6]], "float32")
_IMAGE = np.linspace(-1, 1, 2 * 3 * 4 * 4, dtype="float32").reshape(2, 3, 4, 4)
_ROW = np.array([1, 2, 3], "float32")


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Return a node; names are separated by spaces, and a dash is an empty name."""
    names = ([name.replace("-", "") for name in text.split()] for text in (inputs, outputs))
    return helper.make_node(op, *names, **attributes)


def proto_of(
    nodes: list[onnx.NodeProto],
    weights: Mapping[str, Array] | None = None,
    *,
    data: Array = _DATA,
    opset: int = 17,
    outputs: str = "y",
) -> onnx.ModelProto:
    """Return a model of the input ``x``, whose outputs have types but no shapes."""
    infos = dict.fromkeys(outputs.split(), ())
    proto = model(nodes, {"x": data.shape}, infos, dict(weights or {}))
    for info in proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    proto.opset_import[0].version = opset
    return proto


def changed(proto: onnx.ModelProto, change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    """Return a model after a change in place."""
    change(proto)
    return proto


def repeat_weight(proto: onnx.ModelProto) -> None:
    """Append the first weight once more, in the other form of its elements."""
    array = numpy_helper.to_array(proto.graph.initializer[0])
    again = helper.make_tensor("w", TensorProto.FLOAT, array.shape, array.ravel())
    proto.graph.initializer.append(again)


def make_sparse(proto: onnx.ModelProto) -> None:
    """Replace the weight by a sparse one."""
    del proto.graph.initializer[:]
    sparse = proto.graph.sparse_initializer.add(dims=[3])
    sparse.values.CopyFrom(numpy_helper.from_array(_ROW[:2], "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([0, 2]), "places"))


def sparse_matrix(last: int = 2, rows: int = 3) -> onnx.NodeProto:
    """Return a constant of two elements in a matrix."""
    values = numpy_helper.from_array(_ROW[:2])
    places = numpy_helper.from_array(np.array([[0, 1], [last, 0]]))
    sparse = onnx.SparseTensorProto(dims=[rows, 2], values=values, indices=places)
    return node("Constant", "", "w", sparse_value=sparse)


def add_weight() -> onnx.ModelProto:
    """Return a model of one sum with a weight."""
    return proto_of([node("Add", "x w", "y")], {"w": _ROW})


def alias_domains(proto: onnx.ModelProto) -> None:
    """Name the standard by its other name, beside the usual one."""
    proto.graph.node[0].domain = "ai.onnx"
    proto.opset_import.append(helper.make_opsetid("ai.onnx", 17))


_EXP = [node("Exp", "x", "y")]
_UNSORTED = [node("Exp", "a", "y"), node("Neg", "x", "a")]
_WRONG_INFOS = [
    helper.make_tensor_value_info("a", TensorProto.FLOAT, [9, 9, 9]),
    helper.make_tensor_value_info("a", TensorProto.FLOAT, [2, 3]),
    onnx.ValueInfoProto(name="a"),
    onnx.ValueInfoProto(),
]
_CLEANED = {
    "no_name": changed(proto_of(_EXP), lambda p: p.graph.ClearField("name")),
    "order": proto_of(_UNSORTED),
    "constant_last": proto_of(
        [node("Add", "x w", "y"), node("Constant", "", "w", value=numpy_helper.from_array(_ROW))]
    ),
    "domain_of_node": changed(
        proto_of(_EXP), lambda p: setattr(p.graph.node[0], "domain", "ai.onnx")
    ),
    "domain_of_import": changed(
        proto_of(_EXP), lambda p: setattr(p.opset_import[0], "domain", "ai.onnx")
    ),
    "both_domains": changed(proto_of([*_EXP, node("Neg", "x", "z")], outputs="y z"), alias_domains),
    "two_versions": changed(
        proto_of(_EXP), lambda p: p.opset_import.append(helper.make_opsetid("", 13))
    ),
    "metadata": changed(
        proto_of(_EXP), lambda p: [p.metadata_props.add(key="k", value="v") for _ in "ab"]
    ),
    "repeated_weight": changed(add_weight(), repeat_weight),
    "two_forms": changed(add_weight(), lambda p: p.graph.initializer[0].float_data.extend(_ROW)),
    "unnamed_weight": changed(
        add_weight(), lambda p: p.graph.initializer.append(numpy_helper.from_array(_ROW))
    ),
    "sparse_weight": changed(add_weight(), make_sparse),
    "sparse_constant": proto_of([sparse_matrix(), node("MatMul", "x w", "y")]),
    "weight_as_output": proto_of([node("Add", "x w", "y")], {"w": _ROW}, outputs="y w"),
    "type_of_output": changed(proto_of(_EXP), lambda p: p.graph.output[0].ClearField("type")),
    "inner_shapes": changed(
        proto_of([node("Exp", "x", "a"), node("Neg", "a", "y")]),
        lambda p: p.graph.value_info.extend(_WRONG_INFOS),
    ),
    "empty_outputs": proto_of([node("MaxPool", "x", "y -", kernel_shape=[2, 2])], data=_IMAGE),
    "negative_concat": proto_of([node("Concat", "x x", "y", axis=-1)], opset=8),
    "negative_squeeze": proto_of([node("Squeeze", "x", "y", axes=[-4])], data=_IMAGE[:1], opset=8),
    "negative_unsqueeze": proto_of([node("Unsqueeze", "x", "y", axes=[-1])], opset=8),
    "first_reshape": proto_of([node("Reshape", "x", "y", shape=[3, 2])], opset=1),
    "first_norm": proto_of([node("LpNormalization", "x", "y", axis=-1)], opset=8),
    **{
        f"slice_{start}_{end}_{axis}": proto_of(
            [
                node("Slice", "x", "s", starts=[start], ends=[end], axes=[axis]),
                node("Exp", "s", "y"),
            ],
            opset=9,
        )
        for start, end, axis in (
            (1, 2**63 - 1, 1),
            (1, 2**63 - 1, -1),
            (-(2**63), 2, 1),
            (-2, 2**63 - 2, 1),
            (-100, 2, 1),
        )
    },
    "scaled_image": proto_of(
        [node("ImageScaler", "x", "y", scale=2.0, bias=[1.0, 2.0, 3.0])], data=_IMAGE, opset=7
    ),
    "cropped": proto_of([node("Crop", "x", "y", border=[1, 0, 1, 2])], data=_IMAGE, opset=7),
    "affine": proto_of([node("Affine", "x", "y", alpha=2.0, beta=1.0)], opset=7),
    "scaled": proto_of([node("Scale", "x", "y", scale=3.0)], opset=7),
    "softplus": proto_of([node("ParametricSoftplus", "x", "y", alpha=2.0, beta=0.5)], opset=7),
    "scaled_tanh": proto_of([node("ScaledTanh", "x", "y", alpha=2.0, beta=0.5)], opset=7),
    "first_threshold": proto_of([node("ThresholdedRelu", "x", "y", alpha=2.0)], opset=7),
    "elementwise_norm": proto_of(
        [node("BatchNormalization", "x a b c d", "y", spatial=0)],
        {name: np.abs(_IMAGE[0]) + index for index, name in enumerate("abcd")},
        data=_IMAGE,
        opset=7,
    ),
}


@pytest.mark.parametrize("name", _CLEANED)
def test_repaired_models_keep_their_outputs(name: str) -> None:
    """The cleaned model has the inputs, and the outputs by name, of the model in the file."""
    proto = _CLEANED[name]
    feeds = {"x": _IMAGE if len(proto.graph.input[0].type.tensor_type.shape.dim) == 4 else _DATA}
    feeds["x"] = feeds["x"][: proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value]

    network = clean(proto)

    assert [*network.inputs] == ["x"]
    assert [*network.outputs] == [info.name for info in proto.graph.output]
    actual = run(network.model, feeds)
    for one, other in zip(actual, run(proto.SerializeToString(), feeds), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def nested(nodes: list[onnx.NodeProto], inputs: str, outputs: str) -> onnx.GraphProto:
    """Return the graph of a turn or a branch: flags, numbers and rows by the first letter."""
    kinds: dict[str, tuple[int, Any]] = {"f": (TensorProto.BOOL, []), "i": (TensorProto.INT64, [])}
    infos = [
        [helper.make_tensor_value_info(n, *kinds.get(n[0], (TensorProto.FLOAT, [3])))
         for n in names.split()]
        for names in (inputs, outputs)
    ]  # fmt: skip
    return helper.make_graph(nodes, "nested", *infos)


_SUM = [node("Add", "state part", "total"), node("Neg", "total", "minus")]
_LOOP = [node("Identity", "flag", "final"), node("Add", "state row", "total")]
_ROWS = np.cumsum(_DATA, axis=0)


@pytest.mark.parametrize("outputs", ["a b", "a -", "- b"])
@pytest.mark.parametrize("kind", ["constant If", "If", "Loop", "Scan"])
def test_outputs_of_nested_graphs_count_by_position(kind: str, outputs: str) -> None:
    """A repeated one is not dropped, and one that nothing reads keeps its place."""
    branches = {
        f"{key}_branch": nested([node(op, "row", "total")], "", "total total")
        for key, op in (("then", "Exp"), ("else", "Neg"))
    }
    made = {
        "constant If": node("If", "true", outputs, **branches),
        "If": node("If", "chosen", outputs, **branches),
        "Loop": node(
            "Loop", "two - row", outputs, body=nested(_LOOP, "i flag state", "final total total")
        ),
        "Scan": node(
            "Scan", "row x", outputs, body=nested(_SUM, "state part", "total total"),
            num_scan_inputs=1,
        ),
    }[kind]  # fmt: skip
    nodes = [
        node("ReduceSum", "x", "sum", keepdims=0),
        node("Less", "sum zero", "chosen"),
        node("Gather", "x first", "row", axis=0),
        made,
        node("Sum", outputs.replace("-", ""), "y"),
    ]
    weights = {
        "true": np.array(True), "two": np.array(2), "first": np.array(0),
        "zero": np.array(0, "float32"),
    }  # fmt: skip
    row = _DATA[0]
    expected = {
        "constant If": (np.exp(row), np.exp(row)),
        "If": (-row, -row),
        "Loop": (3 * row, np.outer([2, 3], row)),
        "Scan": (row + _ROWS[-1], row + _ROWS),
    }[kind]

    (actual,) = run(clean(proto_of(nodes, weights)).model, {"x": _DATA})

    total = sum(e for e, name in zip(expected, outputs.split(), strict=True) if name != "-")
    np.testing.assert_allclose(actual, total, rtol=1e-6)


def test_the_parts_of_a_split_are_as_many_as_its_outputs() -> None:
    """Those that nothing reads included."""
    (actual,) = run(clean(proto_of([node("Split", "x", "- y -", axis=1)])).model, {"x": _DATA})

    np.testing.assert_array_equal(actual, _DATA[:, 1:2])


def test_nested_graphs_and_functions_are_repaired() -> None:
    """Their nodes are sorted by what the graphs around them read too."""
    branches = [
        helper.make_graph(
            [node("Exp", "q", out, domain="ai.onnx"), node("Abs", "outer", "q")],
            "",
            [],
            [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
        )
        for out in ("t", "u")
    ]
    flag = node("Constant", "", "flag", value=numpy_helper.from_array(np.array(True)))
    choice = node("If", "flag", "c", then_branch=branches[0], else_branch=branches[1])
    proto = proto_of(
        [node("Twice", "c", "y", domain="own"), choice, flag, node("Neg", "x", "outer")]
    )
    body = [node("Add", "e e", "b"), node("Neg", "a", "e", domain="ai.onnx")]
    opsets = [helper.make_opsetid("ai.onnx", 17)]
    proto.functions.append(helper.make_function("own", "Twice", ["a"], ["b"], body, opsets))
    proto.opset_import.append(helper.make_opsetid("own", 1))

    (actual,) = run(clean(proto).model, {"x": _DATA})

    np.testing.assert_allclose(actual, -2 * np.exp(np.abs(_DATA)), rtol=1e-6)


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (
            changed(
                add_weight(),
                lambda p: p.graph.initializer.append(numpy_helper.from_array(2 * _ROW, "w")),
            ),
            "two different initialisers of the name 'w'",
        ),
        (
            changed(add_weight(), lambda p: p.graph.initializer[0].float_data.extend(2 * _ROW)),
            "weight 'w' in two forms",
        ),
        (
            changed(
                proto_of([node("Softmax", "x", "y")]),
                lambda p: p.opset_import.append(helper.make_opsetid("ai.onnx", 11)),
            ),
            "imports versions 17 and 11 of the domain 'ai.onnx', and Softmax differs",
        ),
        (
            proto_of([node("Add", "x b", "a"), node("Neg", "a", "b"), node("Exp", "a", "y")]),
            "form a cycle through '[ab]'",
        ),
        *(
            (proto_of([sparse_matrix(last), node("MatMul", "x w", "y")]), "indices do not fit")
            for last in (-1, 3)
        ),
        (
            proto_of(
                [
                    node(
                        "If",
                        "flag",
                        "y",
                        **{
                            f"{key}_branch": nested([node("Exp", "x", "a")], "", "a a")
                            for key in ("then", "else")
                        },
                    )
                ],
                {"flag": np.array(True)},
            ),
            "has If 'y' of 1 outputs, whose (then|else)_branch gives 2",
        ),
        (
            proto_of([node("Split", "x", "y b c", axis=1, num_outputs=2)], opset=18),
            "has Split 'y' of 3 outputs, whose num_outputs gives 2",
        ),
        (proto_of([node("Add", "x gone", "y")]), "nothing gives the value 'gone'"),
        (proto_of(_EXP, opset=99), "uses opset 99, and the newest known one is"),
        (
            changed(proto_of(_EXP), lambda p: p.ClearField("opset_import")),
            "model with IR version >= 3 must specify opset_import",
        ),
    ],
)
def test_files_of_two_meanings_are_refused(proto: onnx.ModelProto, message: str) -> None:
    """The error names what contradicts, and nothing is guessed."""
    with pytest.raises(ModelError, match=message) as caught:
        clean(proto)
    assert caught.value.code == "invalid-model"


def test_a_norm_of_channels_stays_one() -> None:
    """Statistics of one axis are those of the channels, also where the last axis is as long."""
    weights = {name: np.arange(1.0, 4.0, dtype="float32") for name in "abcd"}
    data = np.linspace(-1, 1, 27, dtype="float32").reshape(1, 3, 3, 3)
    norm = node("BatchNormalization", "x a b c d", "y", spatial=0)
    network = clean(
        proto_of([norm, node("Exp", "y", "z")], weights, data=data, opset=7, outputs="z")
    )
    plain = proto_of(
        [node("BatchNormalization", "x a b c d", "y"), node("Exp", "y", "z")],
        weights, data=data, opset=7, outputs="z",
    )  # fmt: skip
    cleaned = onnx.load_from_string(network.model)
    kept = [each for each in cleaned.graph.node if each.op_type == "BatchNormalization"]
    for each in kept:
        del each.attribute[:]

    (actual,) = run(cleaned.SerializeToString(), {"x": data})

    (expected,) = run(plain.SerializeToString(), {"x": data})
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_sparse_weights_have_a_limit_together() -> None:
    """A few bytes do not become tensors that fill the memory."""
    proto = add_weight()
    proto.graph.node.extend([sparse_matrix(rows=2**27)] * 2)
    make_sparse(proto)
    proto.graph.sparse_initializer[0].dims[:] = [2**28]

    with pytest.raises(ModelError, match=r"the zeros of its sparse weights needs 3\.2 GB"):
        clean(proto)


def test_a_repair_leaves_the_model_of_the_caller() -> None:
    """The model that is passed stays as it is."""
    proto = proto_of(_UNSORTED)
    before = proto.SerializeToString()

    clean(proto)

    assert proto.SerializeToString() == before


def test_a_repair_leaves_a_valid_network() -> None:
    """The hash of a network does not depend on what is repaired."""
    tidy = relu_model(1, 3)
    untidy = relu_model(1, 3)
    untidy.graph.ClearField("name")
    untidy.graph.node[0].domain = "ai.onnx"

    assert clean(untidy).sha256 == clean(tidy).sha256
