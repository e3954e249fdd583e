"""Operators that importers lack are replaced by others with the same outputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.tuner.networks.models import Array, run
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean
from tuner.networks.onnx.node_builder import Tables
from tuner.networks.onnx.operators.expansions import expand_operators


def one_node(
    op: str,
    data: Mapping[str, Array],
    weights: Mapping[str, Array] | None = None,
    outputs: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one node.

    Args:
        op: Operator; of the domain com.microsoft if its name has it as a prefix.
        data: Inputs, which come first.
        weights: Constants.
        outputs: Element types by name; ``y`` of the type of the first input if None.
        **attributes: Attributes of the node.
    """
    weights = weights or {}
    domain, _, name = op.rpartition(":")
    kinds = {key: helper.np_dtype_to_tensor_dtype(each.dtype) for key, each in data.items()}
    results = {"y": next(iter(kinds.values()))} if outputs is None else outputs
    node = helper.make_node(name, [*data, *weights], [*results], domain=domain, **attributes)
    rank = 4 if name == "Col2Im" else next(iter(data.values())).ndim
    dims = [f"d{axis}" for axis in range(rank)]
    graph = helper.make_graph(
        [node],
        "test",
        [helper.make_tensor_value_info(key, kinds[key], each.shape) for key, each in data.items()],
        [helper.make_tensor_value_info(key, kind, dims) for key, kind in results.items()],
        [numpy_helper.from_array(each, key) for key, each in weights.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def both(proto: onnx.ModelProto, feeds: dict[str, Array]) -> tuple[list[Array], list[Array]]:
    """Return the outputs of a cleaned model, whose node is replaced, and of the model."""
    network = clean(proto)
    left = {node.op_type for node in onnx.load_from_string(network.model).graph.node}
    assert proto.graph.node[0].op_type not in left - {"MaxPool"}
    return run(network.model, feeds), run(proto.SerializeToString(), feeds)


def step_by_step(model: bytes, feeds: dict[str, Array]) -> list[Array]:
    """Run a model in numpy: ONNX Runtime computes float16 in float32 where it lacks kernels."""
    outputs: list[Array] = ReferenceEvaluator(onnx.load_from_string(model)).run(None, feeds)
    return outputs


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float32"])
def test_the_padding_of_a_pool_has_no_index(dtype: str) -> None:
    """Though it equals the least element."""
    data = np.full((1, 1, 4, 4), np.iinfo(dtype).min if dtype[-1] == "8" else 0, dtype)
    data[0, 0, 3, 2] += 1
    outputs = {"y": helper.np_dtype_to_tensor_dtype(data.dtype), "indices": onnx.TensorProto.INT64}
    proto = one_node(
        *("MaxPool", {"data": data}), outputs=outputs, kernel_shape=[3, 3], pads=[1] * 4
    )

    actual, expected = both(proto, {"data": data})

    np.testing.assert_array_equal(actual[1], expected[1])


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e-25), ("float32", 1e25)])
def test_norms_of_any_size_are_one(p: int, dtype: str, size: float) -> None:
    """Squares of the elements leave the range of the type."""
    data = np.array([[1, 1, 1, 1], [0, 0, 0, 0], [0, -3, 4, 0]]) * size
    proto = one_node("LpNormalization", {"data": data.astype(dtype)}, p=p)

    (actual,) = run(clean(proto).model, {"data": data.astype(dtype)})

    norms = np.linalg.norm(data, p, axis=-1, keepdims=True)
    expected = np.divide(data, norms, out=np.zeros_like(data), where=norms > 0)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("size", [1e-4, 300.0])
def test_norms_of_half_precision_are_computed_in_single(size: float) -> None:
    """Squares of these elements leave the range of float16."""
    data = np.array([[1, 1, 1, 1], [1, -3, 4, 2]]) * size
    proto = one_node("LpNormalization", {"data": data.astype("float16")})

    (actual,) = step_by_step(clean(proto).model, {"data": data.astype("float16")})

    expected = data / np.linalg.norm(data, axis=-1, keepdims=True)
    np.testing.assert_allclose(actual, expected, rtol=2e-3)
    assert actual.dtype == np.float16


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("op", "is_centred", "epsilon"),
    [
        ("com.microsoft:SkipLayerNormalization", True, 1e-12),
        ("com.microsoft:SkipSimplifiedLayerNormalization", False, 1e-12),
        ("com.microsoft:SimplifiedLayerNormalization", False, 1e-5),
    ],
)
@pytest.mark.parametrize("size", [0.0, 1e-3, 400.0])
def test_norms_of_sums(op: str, dtype: str, is_centred: bool, epsilon: float, size: float) -> None:
    """They hold for small and large elements, with the default epsilon, in float16 too."""
    rng = np.random.default_rng(0)
    parts = [(rng.standard_normal((2, 8)) * size).astype(dtype) for _ in range(2)]
    scale = rng.standard_normal(8).astype(dtype)
    feeds = {"data": parts[0], "skip": parts[1]} if "Skip" in op else {"data": parts[0]}
    proto = one_node(op, feeds, {"scale": scale})

    (actual,) = step_by_step(clean(proto).model, feeds)

    total = np.sum([each.astype("float64") for each in feeds.values()], axis=0)
    total -= total.mean(-1, keepdims=True) * is_centred
    expected = total / np.sqrt((total**2).mean(-1, keepdims=True) + epsilon) * scale
    np.testing.assert_allclose(actual, expected, rtol=0, atol=4e-3 if dtype == "float16" else 1e-5)
    assert actual.dtype == dtype


def test_parameters_of_an_activation_in_a_product() -> None:
    """They are attributes of their own; an unknown one keeps the node."""
    rng = np.random.default_rng(0)
    data, weight = (rng.standard_normal(shape).astype("float32") for shape in ((3, 4), (4, 5)))
    proto = one_node(
        *("com.microsoft:FusedGemm", {"data": data}, {"weight": weight}),
        activation="LeakyRelu",
        activation_alpha=0.5,
    )

    actual, expected = both(proto, {"data": data})

    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5)
    proto.graph.node[0].attribute[0].s = b"Relu"
    assert expand_operators(proto, Tables()) == 0


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize(
    ("activation", "parameters"),
    [("Clip", [0.0, 6.0]), ("HardSigmoid", [0.2, 0.5]), ("Relu", []), ("", [])],
)
def test_convolutions_with_an_operand_and_an_activation(
    activation: str, parameters: list[float], opset: int
) -> None:
    """The operand is added before the activation."""
    rng = np.random.default_rng(0)
    shapes = {"data": (1, 4, 5, 5), "weight": (2, 4, 3, 3), "bias": (2,), "added": (1, 2, 3, 3)}
    feeds = {key: rng.standard_normal(shape).astype("float32") for key, shape in shapes.items()}
    given = {"activation": activation, "activation_params": parameters}
    options: dict[str, Any] = {name: each for name, each in given.items() if each}
    proto = one_node("com.microsoft:FusedConv", feeds, **options)
    proto.opset_import[0].version = opset

    actual, expected = both(proto, feeds)

    np.testing.assert_allclose(actual[0], expected[0], rtol=0, atol=1e-4)


def test_norms_behind_each_other_are_replaced_at_once() -> None:
    """Though the type of what is between them is unknown before."""
    nodes = []
    for index in range(3):
        last = f"y{index}"
        nodes += [
            helper.make_node("MatMul", [last, "weight"], [f"product{index}"]),
            helper.make_node(
                *("SkipLayerNormalization", [f"product{index}", last, "scale"], [f"y{index + 1}"]),
                domain="com.microsoft",
            ),
        ]
    proto = one_node(
        *("Relu", {"y0": np.zeros((2, 4), "float32")}),
        {"weight": np.eye(4, dtype="float32"), "scale": np.ones(4, "float32")},
    )
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.output[0].name = "y3"

    assert expand_operators(proto, Tables()) == 3


def _dfts() -> onnx.ModelProto:
    proto = one_node("DFT", {"data": np.zeros((1, 3000, 1), "float32")}, axis=1)
    chain = [
        helper.make_node("DFT", ["data"], [f"y{index}"], axis=1, inverse=index)
        for index in range(2)
    ]
    proto.graph.node.extend(chain)
    for node in chain:
        proto.graph.output.add().CopyFrom(proto.graph.output[0])
        proto.graph.output[-1].name = node.output[0]
    return proto


_INDICES = {"y": onnx.TensorProto.FLOAT, "indices": onnx.TensorProto.INT64}


@pytest.mark.parametrize(
    "proto",
    [
        pytest.param(
            one_node(
                *("Col2Im", {"data": np.zeros((1, 1_000_000, 1), "float32")}),
                {"image": np.array([1000, 1000]), "block": np.array([1000, 1000])},
            ),
            id="columns",
        ),
        pytest.param(
            one_node(
                *("MaxPool", {"data": np.zeros((1, 1, 1024, 1024), "float32")}),
                outputs=_INDICES,
                kernel_shape=[64, 64],
            ),
            id="pool",
        ),
        pytest.param(
            one_node(
                *("MaxUnpool", {"data": np.zeros((1, 1, 2, 2), "float32")}),
                {
                    "indices": np.zeros((1, 1, 2, 2), "int64"),
                    "shape": np.array([1, 1, 1 << 20, 1 << 20]),
                },
                kernel_shape=[2, 2],
            ),
            id="unpool",
        ),
        pytest.param(_dfts(), id="transforms"),
    ],
)
def test_huge_tables_of_small_models_are_refused(proto: onnx.ModelProto) -> None:
    """Before they are computed, with the elements of all tables of the model."""
    with pytest.raises(
        ModelError, match=r"to \d+ elements, and a model may have 33554432"
    ) as caught:
        clean(proto)
    assert caught.value.code == "too-large"


def _blocks(height: int) -> onnx.ModelProto:
    data = {"data": np.arange(2 * 3 * height * 6, dtype="float32").reshape(2, 3, height, 6)}
    proto = one_node("SpaceToDepth", data, blocksize=2, mode="CRD")
    proto.opset_import[0].version = 28  # the first with this mode
    return proto


def test_channels_of_blocks_keep_their_order() -> None:
    """TVM's importer takes every mode for the other."""
    proto = _blocks(4)
    feeds = {"data": np.arange(144, dtype="float32").reshape(2, 3, 4, 6)}

    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    (actual,) = ReferenceEvaluator(onnx.load_from_string(clean(proto).model)).run(None, feeds)

    np.testing.assert_array_equal(actual, expected)


def test_blocks_that_do_not_fit_an_image_are_refused() -> None:
    """A reshape would shift its rows, or the refusal would name it."""
    with pytest.raises(ModelError, match="blocks of 2 do not divide an image of 5 by 6"):
        clean(_blocks(5))
    weights = {"image": np.array([5, 5]), "block": np.array([1, 5])}
    with pytest.raises(ModelError, match=r"a Col2Im .*\(7, 5\) for 5 blocks of 5 elements"):
        clean(one_node("Col2Im", {"data": np.zeros((1, 7, 5), "float32")}, weights))


@pytest.mark.parametrize("kind", [onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16])
def test_infinite_numbers_of_half_precision(kind: int) -> None:
    """The largest number of their type is the limit."""
    node = helper.make_node("IsInf", ["data"], ["y"], detect_negative=0)
    infos = [
        helper.make_tensor_value_info(name, each, [4])
        for name, each in (("data", kind), ("y", onnx.TensorProto.BOOL))
    ]
    graph = helper.make_graph([node], "test", infos[:1], infos[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    numbers = np.array([1, np.inf, -np.inf, np.nan]).astype(helper.tensor_dtype_to_np_dtype(kind))

    with np.errstate(invalid="ignore"):  # comparisons of NaN
        (actual,) = ReferenceEvaluator(onnx.load_from_string(clean(proto).model)).run(
            None, {"data": numbers}
        )

    assert actual.tolist() == [False, True, False, False]


@pytest.mark.parametrize("operator", ["LayerNormalization", "RMSNormalization"])
def test_scales_of_a_norm_broadcast_to_its_rows(operator: str) -> None:
    """Importers take those of the shape of a row."""
    data = np.linspace(-1, 2, 24, dtype="float32").reshape(2, 3, 4)
    weights = {"scale": np.arange(4, dtype="float32")}
    proto = one_node(operator, {"x": data}, weights, axis=1)
    proto.opset_import[0].version = 23

    network = clean(proto)

    weights_now = onnx.load_from_string(network.model).graph.initializer
    assert [[*tensor.dims] for tensor in weights_now] == [[3, 4]]
    (actual,) = run(network.model, {"x": data})
    (expected,) = run(proto.SerializeToString(), {"x": data})
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_the_value_of_a_quantised_pad_is_constant() -> None:
    """Quantisers write it as they write weights; importers take a constant."""
    data = np.ones((1, 2), "float32")
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[1,2] data) => (float[1,4] y)'
        "<float v = {0.3}, float s = {0.25}, uint8 z = {9}, int64[4] pads = {0, 1, 0, 1}>"
        "{ r = QuantizeLinear (v, s, z) q = DequantizeLinear (r, s, z) y = Pad (data, pads, q) }"
    )

    network = clean(proto)

    assert [node.op_type for node in onnx.load_from_string(network.model).graph.node] == ["Pad"]
    assert run(network.model, {"data": data})[0].tolist() == [[0.25, 1.0, 1.0, 0.25]]


def test_rounding_to_eight_bits_is_refused() -> None:
    """Kernels keep the digits of such numbers."""
    cast = one_node("Cast", {"x": np.ones(2, "float32")}, to=onnx.TensorProto.FLOAT8E4M3FN)
    like = one_node("CastLike", {"x": np.ones(2, "float32"), "kind": np.ones(1, "float32")})
    like.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.FLOAT8E4M3FN

    for proto in (cast, like):
        proto.opset_import[0].version = 23
        with pytest.raises(ModelError, match="of floating-point numbers of at most 8 bits"):
            clean(proto)


@pytest.mark.parametrize("shape", [(2, 3, 4), (6,)])
def test_a_norm_of_the_data_as_a_whole_is_that_of_one_row(shape: tuple[int, ...]) -> None:
    """Importers take no norm of a root mean square over all axes."""
    data, scale = np.linspace(-1, 2, np.prod(shape), dtype="float32").reshape(shape), np.ones(shape)
    weights = {"s": np.cumsum(scale).reshape(shape).astype("float32")}
    proto = one_node("RMSNormalization", {"x": data}, weights, axis=0, epsilon=1e-3)
    proto.opset_import[0].version = 23

    network = clean(proto)

    (norm,) = (
        node
        for node in onnx.load_from_string(network.model).graph.node
        if node.op_type == "RMSNormalization"
    )
    assert [each.i for each in norm.attribute if each.name == "axis"] == [1]
    (actual,) = run(network.model, {"x": data})
    (expected,) = run(proto.SerializeToString(), {"x": data})
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
