"""Values without elements, such as the cache of a prompt, are constants of the network."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.networks.models import Array, model, relu_model, run
from tests.tuner.networks.single_nodes import node_model
from tuner.engines.base import ModelFile
from tuner.errors import ModelError
from tuner.library.manifest import InputValue, Source
from tuner.networks.base import LoadedModel
from tuner.networks.onnx.cleaning import clean
from tuner.networks.originals import write_original
from tuner.workers.messages import decode, encode

_DATA = np.random.default_rng(0).standard_normal((1, 4, 8)).astype("float32")


def decoder(past: tuple[int | str, ...]) -> onnx.ModelProto:
    """Return attention among the keys so far, and a number that depends on how many there are."""
    nodes = [
        helper.make_node("Concat", ["past", "data"], ["keys"], axis=1),
        helper.make_node("Transpose", ["keys"], ["columns"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["data", "columns"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"]),
        helper.make_node("MatMul", ["shares", "keys"], ["sums"]),
        helper.make_node("Shape", ["past"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "axis"], ["length"]),
        helper.make_node("Cast", ["length"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["sums", "number"], ["y"]),
    ]
    return model(
        nodes,
        {"data": (1, "n", 8), "past": past},
        {"y": (1, "n", 8), "keys": (1, "total", 8)},
        {"axis": np.array(1)},
    )


@pytest.mark.parametrize("past", [(1, "p", 8), (1, 0, 8)])
def test_an_empty_cache_is_left_out(past: tuple[int | str, ...]) -> None:
    """Its length is known, and nothing is concatenated."""
    proto = decoder(past)
    feeds = {"data": _DATA, "past": np.zeros((1, 0, 8), "float32")}
    expected = run(proto.SerializeToString(), feeds)

    network = clean(proto, {"data": (1, 4, 8), "past": (1, 0, 8)})

    assert [*network.inputs] == ["data"]
    assert network.values == {"past": (1, 0, 8)}
    for actual, other in zip(run(network.model, {"data": _DATA}), expected, strict=True):
        np.testing.assert_allclose(actual, other, rtol=1e-6)


def test_a_declared_dimension_of_zero_is_empty() -> None:
    """ONNX Runtime takes no other size; exporters that do not know one write 0 too."""
    assert clean(decoder((1, 0, 8)), {"data": (1, 4, 8)}).values == {"past": (1, 0, 8)}
    assert clean(decoder((1, 0, 8)), {"data": (1, 4, 8), "past": (1, 2, 8)}).values == {}
    with pytest.raises(ModelError, match=r"output 'y' has no elements: give the inputs other"):
        clean(relu_model(0, 3))


def test_a_dimension_of_length_zero_is_given_once() -> None:
    """The other inputs that have it are empty too."""
    proto = decoder((1, "p", 8))
    proto.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, ("p", 8)))
    proto.graph.node[0].input[0] = "joint"
    rows = helper.make_node("Add", ["past", "more"], ["joint"])
    proto.graph.node.insert(0, rows)

    network = clean(proto, {"data": (1, 4, 8), "more": (0, 8)})

    assert network.values == {"past": (1, 0, 8), "more": (0, 8)}


def test_fused_attention_takes_an_empty_cache() -> None:
    """As it takes none."""
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {
        name: rng.standard_normal((2, 3, 16)).astype("float32") for name in "qkv"
    }
    caches = {name: np.zeros((2, 4, 0, 4), "float32") for name in ("past_k", "past_v")}
    slots = [*"qkv", "", "", "", *caches]
    op = "com.microsoft:MultiHeadAttention"
    proto = node_model(op, {**feeds, **caches}, slots, n_outputs=3, num_heads=4)
    expected = run(proto.SerializeToString(), {**feeds, **caches})

    network = clean(proto, dict.fromkeys(caches, (2, 4, 0, 4)))

    for actual, other in zip(run(network.model, feeds), expected, strict=True):
        np.testing.assert_allclose(actual, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("bounds", [(0, 3, -1), (3, 1, 1)])
def test_the_sum_of_an_empty_slice_is_zero(bounds: tuple[int, int, int]) -> None:
    """Also where the slice goes backwards: kernels have neither of them (tvm#19532)."""
    nodes = [
        helper.make_node("Slice", ["data", "begin", "end", "axis", "step"], ["none"]),
        helper.make_node("Relu", ["none"], ["still_none"]),
        helper.make_node("ReduceSum", ["still_none", "axis"], ["sums"], keepdims=1),
        helper.make_node("Sub", ["data", "sums"], ["y"]),
    ]
    numbers = dict(zip(("begin", "end", "step", "axis"), (*bounds, 2), strict=True))
    places = {name: np.array([number]) for name, number in numbers.items()}
    proto = model(nodes, {"data": (1, 4, 8)}, {"y": (1, 4, 8)}, places)

    network = clean(proto)

    assert {"Slice", "ReduceSum"}.isdisjoint(
        node.op_type for node in onnx.ModelProto.FromString(network.model).graph.node
    )
    (actual,) = run(network.model, {"data": _DATA})
    (expected,) = run(proto.SerializeToString(), {"data": _DATA})
    np.testing.assert_array_equal(actual, expected)


def test_peers_run_the_model_with_an_empty_constant(tmp_path: Path) -> None:
    """Its shape comes back from workers."""
    path = tmp_path / "decoder.onnx"
    onnx.save(decoder((1, "p", 8)), path)
    file = ModelFile("m.onnx", "onnx", {})
    loaded = LoadedModel("m", "0" * 64, file, {}, (), Source("m"), values={"past": (1, 0, 8)})
    values = decode(encode(loaded), LoadedModel).values

    original = write_original(
        str(path), {"data": ((1, 4, 8), "float32")}, None, str(tmp_path), values
    )

    assert original.description == "decoder.onnx, not cleaned, past=1,0,8"
    assert [*original.inputs] == ["data"]
    assert run(Path(original.path).read_bytes(), {"data": _DATA})[1].shape == (1, 4, 8)


def test_values_pass_through_json() -> None:
    """Shapes, truth values and numbers stay what they are."""
    values = {"past": (1, 0, 8), "flag": True, "rate": 16000}

    read = msgspec.convert(json.loads(json.dumps(values)), dict[str, InputValue])

    assert read == values
    assert read["flag"] is True


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        *product(["Max", "Mean", "Min", "Prod", "Sum"], ["float32", "int32"]),
        *product(["L1", "L2", "LogSum", "LogSumExp", "SumSquare"], ["float32"]),
        *product(["Max", "Min"], ["float16", "uint8"]),
        ("Einsum", "float32"),
    ],
)
def test_a_reduction_of_no_elements_is_a_constant(op: str, kind: str) -> None:
    """Its kernel would write nothing to its result."""
    options = {"equation": "ij->i"} if op == "Einsum" else {"keepdims": 0}
    proto = _reduction(op if op == "Einsum" else f"Reduce{op}", kind, **options)
    feeds = {"data": np.ones((2, 4), kind)}
    expected = run(proto.SerializeToString(), feeds)

    network = clean(proto)

    for actual, other in zip(run(network.model, feeds), expected, strict=True):
        np.testing.assert_array_equal(actual, other, strict=True)
    nodes = onnx.load_from_string(network.model).graph.node
    assert {node.op_type for node in nodes} <= {"Add", "Constant"}


def test_a_maximum_of_no_truths_is_false() -> None:
    """ONNX Runtime refuses the call; the specification gives the lowest value of the type."""
    for op, expected in (("ReduceMax", False), ("ReduceMin", True)):
        truth, _ = run(
            clean(_reduction(op, "bool", keepdims=0)).model, {"data": np.ones((2, 4), "bool")}
        )

        np.testing.assert_array_equal(truth, [expected] * 2, strict=True)


def test_the_position_of_a_maximum_of_no_elements_is_refused() -> None:
    """ONNX Runtime refuses the call."""
    with pytest.raises(ModelError, match="ArgMax has no elements along axis 1"):
        clean(_reduction("ArgMax", "float32", axis=1, keepdims=0))


def _reduction(op: str, kind: str, **attributes: Any) -> onnx.ModelProto:
    """Return a model that reduces a slice without elements, beside an operator of its input."""
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    axes = ["one"] if op.startswith("Reduce") else []
    nodes = [
        helper.make_node("Slice", ["data", "two", "two", "one"], ["slice"]),
        helper.make_node(op, ["slice", *axes], ["y"], **attributes),
        helper.make_node("And" if kind == "bool" else "Add", ["data", "data"], ["z"]),
    ]
    kinds = {"y": TensorProto.INT64 if op == "ArgMax" else dtype, "z": dtype}
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("data", dtype, [2, 4])],
        [helper.make_tensor_value_info(name, each, None) for name, each in kinds.items()],
        [numpy_helper.from_array(np.array([n]), name) for name, n in (("one", 1), ("two", 2))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
