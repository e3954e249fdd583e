"""Fused operators of ONNX Runtime's transformer optimiser compute what they did."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.networks.models import Array, run
from tests.tuner.networks.single_nodes import both, node_model
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean
from tuner.networks.onnx.inputs.input_values import describe_onnx

_RNG = np.random.default_rng(0)
_B, _S, _H, _N = 2, 5, 16, 4


def draw(*shape: int) -> Array:
    """Return random numbers."""
    return _RNG.standard_normal(shape).astype("float32")


def flags(*shape: int) -> Array:
    """Return zeros and ones."""
    return (_RNG.random(shape) < 0.7).astype("int32")


def check(
    op: str, feeds: Mapping[str, Array], slots: list[str], opset: int = 18, **others: Any
) -> None:
    """Compare the outputs of a model with those of its cleaned form."""
    proto = node_model(f"com.microsoft:{op}", feeds, slots, **others)
    (standard,) = (each for each in proto.opset_import if not each.domain)
    standard.version = opset
    for actual, expected in zip(*both(proto, feeds), strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize(
    "mask",
    [
        None,
        np.array([3, 5], "int32"),
        np.array([5, 4, 0, 1], "int32"),
        flags(_B, _S),
        flags(_B, _S, _S),
    ],
    ids=["none", "lengths", "starts", "keys", "pairs"],
)
def test_attention_with_masks(mask: Array | None, is_causal: int) -> None:
    """Lengths, ranges, keys, and pairs of a query and a key can be hidden."""
    masks = {} if mask is None else {"mask": mask}
    slots = ["data", "w", "b", *masks]
    weights = {"w": draw(_H, 3 * _H), "b": draw(3 * _H)}
    feeds = {"data": draw(_B, _S, _H), **masks}
    check("Attention", feeds, slots, weights=weights, num_heads=_N, unidirectional=is_causal)


@pytest.mark.parametrize("opset", [11, 12, 18])
def test_attention_with_a_past(opset: int) -> None:
    """The keys and values so far come before those of the input, and are returned."""
    feeds = {"data": draw(_B, _S, _H), "past": draw(2, _B, _N, 3, 4), "mask": flags(_B, 8)}
    weights = {"w": draw(_H, 3 * _H), "b": draw(3 * _H)}
    slots = ["data", "w", "b", "mask", "past"]
    heads = {"num_heads": _N, "unidirectional": 1}
    check("Attention", feeds, slots, opset, weights=weights, n_outputs=2, **heads)


def test_ranges_of_keys_in_an_old_model() -> None:
    """Its operators have no comparison with equality."""
    feeds = {"data": draw(_B, _S, _H), "mask": np.array([5, 4, 0, 1], "int32")}
    weights = {"w": draw(_H, 3 * _H), "b": draw(3 * _H)}
    check("Attention", feeds, ["data", "w", "b", "mask"], 11, weights=weights, num_heads=_N)


@pytest.mark.parametrize("heads", [0, -1, 3, 1 << 62, None])
@pytest.mark.parametrize("op", ["Attention", "MultiHeadAttention"])
def test_heads_that_do_not_divide_the_operands(op: str, heads: int | None) -> None:
    """No number of heads, or none that fits."""
    feeds = {"q": draw(_B, _S, _H), "k": draw(_B, _S, _H), "v": draw(_B, _S, _H)}
    if op == "Attention":
        feeds |= {"k": draw(_H, 3 * _H), "v": draw(3 * _H)}
    proto = node_model(f"com.microsoft:{op}", feeds, [*feeds], num_heads=_N)
    del proto.graph.node[0].attribute[:]
    if heads is not None:
        proto.graph.node[0].attribute.append(helper.make_attribute("num_heads", heads))

    with pytest.raises(ModelError, match=f"attributes of a {op} do not fit") as caught:
        clean(proto)

    assert caught.value.code == "invalid-model"


def test_a_flag_is_set_by_one_alone() -> None:
    """ONNX Runtime takes other numbers for 0."""
    feeds = {"data": draw(_B, _S, _H)}
    weights = {"w": draw(_H, 3 * _H), "b": draw(3 * _H)}
    slots = ["data", "w", "b"]
    check("Attention", feeds, slots, weights=weights, num_heads=_N, unidirectional=2)


def test_a_past_without_a_present_is_refused() -> None:
    """ONNX Runtime leaves the past out, then."""
    shapes = {"q": (_B, _S, _H), "k": (_B, _S, _H), "v": (_B, _S, _H)}
    feeds = {name: draw(*shape) for name, shape in shapes.items()}
    feeds |= {name: draw(_B, _N, 3, 4) for name in ("past_k", "past_v")}
    slots = ["q", "k", "v", "", "", "", "past_k", "past_v"]
    proto = node_model("com.microsoft:MultiHeadAttention", feeds, slots, num_heads=_N)

    with pytest.raises(ModelError, match="MultiHeadAttention of"):
        clean(proto)


def test_causal_attention_of_fewer_queries_than_keys() -> None:
    """It is refused, because the operator does not say which keys a query sees."""
    feeds = {"q": draw(_B, 3, _H), "k": draw(_B, _S, _H), "v": draw(_B, _S, _H)}
    proto = node_model(
        "com.microsoft:MultiHeadAttention", feeds, [*feeds], num_heads=_N, unidirectional=1
    )

    with pytest.raises(ModelError, match="MultiHeadAttention of"):
        clean(proto)


def test_attention_with_values_of_another_size() -> None:
    """A bias of the scores is added."""
    feeds = {"data": draw(_B, _S, _H), "bias": draw(1, _N, _S, _S)}
    weights = {"w": draw(_H, 40), "b": draw(40)}
    slots = ["data", "w", "b", "", "", "bias"]
    check("Attention", feeds, slots, weights=weights, num_heads=_N, qkv_hidden_sizes=[16, 16, 8])


@pytest.mark.parametrize("mask", [np.array([3, 7], "int32"), flags(_B, 7)])
def test_multi_head_attention_among_two_sequences(mask: Array) -> None:
    """Biases of the projections are one operand."""
    feeds = {"q": draw(_B, _S, _H), "k": draw(_B, 7, _H), "v": draw(_B, 7, _H), "mask": mask}
    slots = ["q", "k", "v", "b", "mask"]
    check("MultiHeadAttention", feeds, slots, weights={"b": draw(3 * _H)}, num_heads=_N)


def test_multi_head_attention_with_a_past() -> None:
    """Keys and values may be laid out by heads."""
    shapes = {"q": (_B, _S, _H), "k": (_B, _S, _H), "v": (_B, _S, _H)}
    feeds = {name: draw(*shape) for name, shape in shapes.items()}
    feeds |= {name: draw(_B, _N, 3, 4) for name in ("past_k", "past_v")}
    slots = ["q", "k", "v", "", "", "", "past_k", "past_v"]
    check("MultiHeadAttention", feeds, slots, n_outputs=3, num_heads=_N, unidirectional=1)
    feeds = {"q": draw(_B, _S, _H), "k": draw(_B, _N, 7, 4), "v": draw(_B, _N, 7, 4)}
    check("MultiHeadAttention", feeds, ["q", "k", "v"], num_heads=_N)


@pytest.mark.parametrize("past", [0, 6])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1, "softcap": 5.0},
        {"do_rotary": 1, "local_window_size": 3},
    ],
)
def test_grouped_attention(past: int, options: dict[str, Any]) -> None:
    """Groups of heads share keys; tokens after a full cache are at the places behind it."""
    opset = 11 if past and "softcap" in options else 18
    length = 1 if past else _S
    feeds = {"q": draw(_B, length, 64), "k": draw(_B, length, 32), "v": draw(_B, length, 32)}
    caches = {name: draw(_B, 2, past, 16) for name in ("past_k", "past_v")} if past else {}
    weights = {
        "lengths": np.full(_B, past + length - 1, "int32"),
        "total": np.array(past + length, "int32"),
        "cos": draw(32, 8),
        "sin": draw(32, 8),
    }
    slots = ["q", "k", "v", *(caches or ("", "")), *weights]
    heads = {"num_heads": 4, "kv_num_heads": 2}
    check(
        "GroupQueryAttention",
        {**feeds, **caches},
        slots,
        opset,
        weights=weights,
        n_outputs=3,
        **heads,
        **options,
    )


def test_grouped_attention_of_one_operand() -> None:
    """Its columns are those of all heads and of two times the shared ones."""
    weights = {"lengths": np.full(_B, _S - 1, "int32"), "total": np.array(_S, "int32")}
    check(
        "GroupQueryAttention",
        {"qkv": draw(_B, _S, 5 * 16)},
        ["qkv", "", "", "", "", *weights],
        weights=weights,
        n_outputs=3,
        num_heads=3,
        kv_num_heads=1,
    )


def _masked(
    n_queries: int, n_past: int, mask: Array, **options: Any
) -> tuple[Any, dict[str, Array]]:
    """Return a model whose cache has lengths that are counted in a mask, and its inputs."""
    n_batches, total = mask.shape
    feeds = {"q": draw(n_batches, n_queries, 64)}
    feeds |= {name: draw(n_batches, n_queries, 32) for name in ("k", "v")}
    caches = {name: draw(n_batches, 2, n_past, 16) for name in ("past_k", "past_v")}
    feeds |= caches if n_past else {}
    weights = {"total": np.array(total, "int32"), "cos": draw(32, 8), "sin": draw(32, 8)}
    slots = ["q", "k", "v", *(caches if n_past else ("", "")), "lengths", *weights]
    lengths = {"lengths": mask.sum(1, dtype="int32") - 1}
    options |= {"num_heads": 4, "kv_num_heads": 2, "n_outputs": 3, "do_rotary": 1}
    op = "com.microsoft:GroupQueryAttention"
    proto = node_model(op, {**feeds, **lengths}, slots, weights, **options)
    (declared,) = (each for each in proto.graph.input if each.name == "lengths")
    declared.CopyFrom(helper.make_tensor_value_info("mask", TensorProto.INT64, mask.shape))
    one = numpy_helper.from_array(np.array([1]), "one")
    proto.graph.initializer.append(one)
    nodes = [
        helper.make_node("ReduceSum", ["mask", "one"], ["sums"], keepdims=0),
        helper.make_node("Sub", ["sums", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["lengths"], to=TensorProto.INT32),
        *proto.graph.node,
    ]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto, {**feeds, "mask": mask}


def _ones(*lengths: int, total: int) -> Array:
    return (np.arange(total) < np.array(lengths)[:, None]).astype("int64")


@pytest.mark.parametrize(
    ("n_queries", "n_past", "mask", "options", "opset"),
    [
        (1, 6, _ones(7, 7, total=7), {}, 18),
        (1, 6, _ones(7, 4, total=7), {}, 18),
        (1, 9, _ones(7, 4, total=7), {"softcap": 3.0}, 18),
        (1, 6, _ones(7, 4, total=7), {"local_window_size": 3}, 18),
        (3, 6, _ones(7, total=9), {"local_window_size": 2}, 13),
        (3, 12, _ones(8, total=9), {}, 18),
        (5, 8, _ones(5, 5, total=5), {}, 13),
        (5, 0, _ones(5, 5, total=5), {}, 18),
    ],
    ids=["full", "part", "longer", "window", "several", "several_longer", "prompt", "no_cache"],
)
def test_a_cache_of_as_many_keys_as_a_mask_has(
    n_queries: int, n_past: int, mask: Array, options: dict[str, Any], opset: int
) -> None:
    """New keys follow those of each sequence, at its places; keys behind them are hidden."""
    proto, feeds = _masked(n_queries, n_past, mask, **options)
    proto.opset_import[0].version = opset

    network = clean(proto)

    actual = run(network.model, {name: feeds[name] for name in network.inputs})
    for each, expected in zip(actual, run(proto.SerializeToString(), feeds), strict=True):
        np.testing.assert_allclose(each, expected, rtol=0, atol=1e-5)


def test_the_padding_of_a_prompt_does_not_reach_its_tokens() -> None:
    """ONNX Runtime leaves the outputs of padding open."""
    proto, feeds = _masked(5, 0, _ones(3, 5, total=5))

    network = clean(proto)

    actual = run(network.model, {name: feeds[name] for name in network.inputs})[0]
    expected = run(proto.SerializeToString(), feeds)[0]
    np.testing.assert_allclose(actual[0, :3], expected[0, :3], rtol=0, atol=1e-5)
    np.testing.assert_allclose(actual[1], expected[1], rtol=0, atol=1e-5)


def test_lengths_are_counted_in_masks_of_ones() -> None:
    """Drawn zeros and ones would give lengths that ONNX Runtime refuses."""
    proto, _ = _masked(1, 6, _ones(7, 7, total=7))

    ranges = describe_onnx(onnx.load_from_string(clean(proto).model)).ranges

    assert (ranges["mask"].low, ranges["mask"].high) == (1, 1)


def test_a_cache_whose_end_the_data_tell_is_refused() -> None:
    """Its length is known when the network runs."""
    proto, _ = _masked(1, 6, _ones(7, 7, total=7))
    (total,) = (each for each in proto.graph.initializer if each.name == "total")
    proto.graph.initializer.remove(total)
    proto.graph.input.append(helper.make_tensor_value_info("total", TensorProto.INT32, ()))

    with pytest.raises(ModelError, match=r"GroupQueryAttention of \(2, 1, 64\)") as caught:
        clean(proto)

    assert caught.value.code == "unsupported-operator"


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("shape", "places", "options"),
    [
        ((_B, _S, 16), _RNG.integers(0, 32, (_B, _S)), {}),
        ((_B, 3, _S, 8), np.array([4]), {}),
        ((_B, _S, 36), np.array([0]), {"num_heads": 3, "rotary_embedding_dim": 8}),
    ],
    ids=["places", "heads", "part"],
)
def test_rotations(
    shape: tuple[int, ...], places: Array, options: dict[str, int], interleaved: int
) -> None:
    """Places are given for each token or for the first; the rest of a head stays."""
    feeds = {"data": draw(*shape), "places": places}
    weights = {"cos": draw(32, 4), "sin": draw(32, 4)}
    slots = [*feeds, *weights]
    check("RotaryEmbedding", feeds, slots, weights=weights, interleaved=interleaved, **options)


@pytest.mark.parametrize("mask", [None, np.array([[1, 1, 1, 0, 0], [1] * 5], "int32")])
def test_embeddings_and_their_norm(mask: Array | None) -> None:
    """The lengths that the mask leaves are an output."""
    masks = {} if mask is None else {"mask": mask}
    feeds = {name: flags(_B, _S) for name in ("ids", "segments")}
    shapes = {"words": (50, 8), "places": (10, 8), "kinds": (2, 8), "scale": (8,), "shift": (8,)}
    weights = {name: draw(*shape) for name, shape in shapes.items()}
    slots = [*feeds, *weights, *masks]
    check("EmbedLayerNormalization", {**feeds, **masks}, slots, weights=weights, n_outputs=2)


@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu"])
def test_activations_with_a_bias(op: str) -> None:
    """The bias is added first."""
    check(op, {"data": draw(2, 3, 8)}, ["data", "b"], weights={"b": draw(8)})


@pytest.mark.parametrize("kind", ["4", "8", "int4", "uint4"])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_rows_of_a_quantised_table(kind: str, has_zeros: bool) -> None:
    """Numbers of 4 bits are two in a byte, or of a type of their own."""
    dtype = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}.get(kind, np.uint8)
    low, high = {"int4": (-8, 8), "uint4": (0, 16)}.get(kind, (0, 256))
    bits = 8 if kind == "8" else 4
    is_packed = kind == "4"

    def numbers(columns: int) -> Array:
        shape = (20, columns // 2 if is_packed else columns)
        return _RNG.integers(low, high, shape).astype(dtype)

    weights = {"codes": numbers(32), "scales": draw(20, 2)}
    weights |= {"zeros": numbers(2)} if has_zeros else {}
    feeds = {"rows": _RNG.integers(0, 20, (2, 3))}
    slots = ["codes", "rows", *[*weights][1:]]
    options = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    check("GatherBlockQuantized", feeds, slots, weights=weights, **options)
