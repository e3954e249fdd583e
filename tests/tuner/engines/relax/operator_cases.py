"""Cases of operators, many of which are one model, so that a test takes a fraction of a second."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.networks import run_lowered
from tests.tuner.networks.models import Array, run
from tuner.peers.exact import exact_sums

OPSET = 23


@dataclass(frozen=True)
class Case:
    """A small graph; its outputs are those that no node reads.

    Attributes:
        name: Name, unique in its family.
        nodes: Nodes; names of values need not be unique among cases.
        inputs: Arrays by name.
        weights: Constants by name.
        tolerance: Largest difference, relative to the largest output.
    """

    name: str
    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, Array]
    weights: Mapping[str, Array] = field(default_factory=dict)
    tolerance: float = 1e-5

    @property
    def outputs(self) -> list[str]:
        """Names of its outputs."""
        read = {name for node in self.nodes for name in node.input}
        written = [name for node in self.nodes for name in node.output if name]
        return [name for name in written if name not in read]


def case(
    name: str,
    op: str,
    *inputs: Array,
    weights: Sequence[Any] = (),
    n_outputs: int = 1,
    tolerance: float = 1e-5,
    domain: str = "",
    **attributes: Any,
) -> Case:
    """Return a case of one node.

    Args:
        name: Name of the case.
        op: Operator.
        inputs: Arrays that are inputs of the model.
        weights: Arrays that follow as constants; None leaves an input out.
        n_outputs: Number of outputs.
        tolerance: See :class:`Case`.
        domain: Domain of the operator.
        **attributes: Attributes of the node.
    """
    names = [f"x{index}" for index in range(len(inputs))]
    constants = {f"w{i}": np.asarray(w) for i, w in enumerate(weights) if w is not None}
    slots = [f"w{i}" if w is not None else "" for i, w in enumerate(weights)]
    outputs = [f"y{index}" for index in range(n_outputs)]
    node = helper.make_node(op, [*names, *slots], outputs, domain=domain, **attributes)
    return Case(name, [node], dict(zip(names, inputs, strict=True)), constants, tolerance)


def combine(
    cases: Sequence[Case], opset: int = OPSET, expected: Sequence[Array] = ()
) -> tuple[onnx.ModelProto, dict[str, Array], Sequence[Array]]:
    """Return one model of all cases, its inputs, and its outputs.

    These are computed by ONNX Runtime if they are not given. Sums of products of bytes are exact
    on any CPU.
    """
    nodes, weights, outputs = [], [], []
    feeds: dict[str, Array] = {}
    for each in cases:
        prefix = f"{each.name}_"
        for node in each.nodes:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            for names in (copy.input, copy.output):
                renamed = [prefix + name if name else "" for name in names]
                del names[:]
                names.extend(renamed)
            nodes.append(copy)
        weights += [numpy_helper.from_array(a, prefix + n) for n, a in each.weights.items()]
        feeds |= {prefix + name: array for name, array in each.inputs.items()}
        outputs += [prefix + name for name in each.outputs]
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    graph = helper.make_graph(
        nodes, "cases", inputs, [onnx.ValueInfoProto(name=name) for name in outputs], weights
    )
    versions = {"": opset, "com.microsoft": 1, "ai.onnx.ml": 3}
    opsets = [helper.make_opsetid(*each) for each in versions.items()]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    exact = onnx.ModelProto()
    exact.CopyFrom(proto)
    exact_sums.move_weights(exact)
    expected = expected or run(exact.SerializeToString(), feeds)
    for info, array in zip(graph.output, expected, strict=True):
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        info.CopyFrom(helper.make_tensor_value_info(info.name, dtype, array.shape))
    proto.graph.CopyFrom(graph)
    return proto, feeds, expected


# Activations that engines have for float32 alone, with their attributes.
_NARROW: dict[str, dict[str, Any]] = {
    "LRN": {"size": 3},
    "ThresholdedRelu": {},
}


def _grouped_attention(name: str, lengths: list[int], n_queries: int) -> Case:
    """Return a case whose cache of 6 keys has the given lengths with the new keys, less one."""
    query = draw(len(lengths), n_queries, 64)
    new = [draw(len(lengths), n_queries, 32, seed=seed) for seed in (5, 6)]
    caches = [draw(len(lengths), 2, 6, 16, seed=seed) for seed in (1, 2)]
    inputs = [query, *new, *caches, np.array(lengths, "int32")]
    return case(
        name,
        "GroupQueryAttention",
        *inputs,
        weights=[np.array(6 + n_queries, "int32"), draw(16, 8, seed=3), draw(16, 8, seed=4)],
        n_outputs=3,
        domain="com.microsoft",
        num_heads=4,
        kv_num_heads=2,
        do_rotary=1,
    )


def _transposed(name: str, kernel: tuple[int, ...], **attributes: Any) -> Case:
    data = draw(2, 8, *(6, 5, 4)[: len(kernel)])
    weights = {
        "w": draw(8, 24 // attributes.get("group", 1), *kernel, seed=1),
        "b": draw(24, seed=2),
    }
    nodes = [
        helper.make_node("ConvTranspose", ["data", "w", "b"], ["t"], **attributes),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    return Case(name, nodes, {"data": data}, weights)


TRANSPOSED_CONVOLUTIONS = [
    _transposed("overlapping", (4, 4), strides=[2, 2], pads=[1, 1, 1, 1]),
    _transposed("disjoint", (2, 2), strides=[2, 2]),
    _transposed("sparse", (1, 1), strides=[3, 3], output_padding=[2, 1]),
    _transposed(
        *("mixed", (3, 5)),
        strides=[3, 2],
        dilations=[2, 1],
        pads=[0, 3, 1, 2],
        group=2,
        output_padding=[2, 0],
    ),
    _transposed("cropped", (7,), strides=[1], pads=[6, 0]),
    _transposed("depthwise", (3,), strides=[2], dilations=[3], pads=[5, 4], group=8),
    _transposed("volume", (2, 3, 2), strides=[2, 1, 3], pads=[0, 1, 0, 1, 1, 0], group=4),
]

_ROWS = draw(2, 3, 300, seed=3)
SCANS = [
    case("sum", "CumSum", _ROWS, weights=[np.array(-1)]),
    case("sum_before", "CumSum", _ROWS, weights=[np.array(1)], exclusive=1),
    case("sum_behind", "CumSum", _ROWS, weights=[np.array(2)], exclusive=1, reverse=1),
    case("sum_of_whole", "CumSum", np.arange(200).reshape(2, 100) % 7, weights=[np.array(1)]),
    case("top", "TopK", _ROWS, weights=[np.array([7])], n_outputs=2),
    case("bottom", "TopK", _ROWS, weights=[np.array([2])], n_outputs=2, axis=1, largest=0),
]

_LENGTHS = np.array([3, 2, 1], "int32")


def recurrent(
    name: str, op: str, *, optional: str = "", batch: int = 3, hidden: int = 5, **attributes: Any
) -> Case:
    """Return a recurrent layer of three steps; ``optional`` has a letter for each other input.

    These are b(ias), l(engths), h (initial states), c (initial memory) and p(eepholes).
    """
    n_gates, n_dirs = {"RNN": 1, "GRU": 3, "LSTM": 4}[op], 1
    if attributes.get("direction") == "bidirectional":
        n_dirs = 2
    data, state = (3, batch, 6), (n_dirs, batch, hidden)
    if attributes.get("layout"):
        data, state = (batch, 3, 6), (batch, n_dirs, hidden)
    rest = {
        "b": draw(n_dirs, 2 * n_gates * hidden, seed=3),
        "l": _LENGTHS[:batch],
        "h": draw(*state, seed=4),
        "c": draw(*state, seed=5),
        "p": draw(n_dirs, 3 * hidden, seed=6),
    }
    slots = rest if op == "LSTM" else "blh"
    weights = [
        draw(n_dirs, n_gates * hidden, 6, seed=1),
        draw(n_dirs, n_gates * hidden, hidden, seed=2),
        *(rest[slot] if slot in optional else None for slot in slots),
    ]
    return case(
        name,
        op,
        draw(*data),
        weights=weights,
        n_outputs=3 if op == "LSTM" else 2,
        hidden_size=hidden,
        **attributes,
    )


def _stateful() -> Case:
    """Return an LSTM whose states are computed by the model, as in streaming networks."""
    names = ["data", "w", "r", "b", "", "state", "memory"]
    nodes = [
        helper.make_node("Unsqueeze", ["last", "axes"], ["state"]),
        helper.make_node("Unsqueeze", ["kept", "axes"], ["memory"]),
        helper.make_node("LSTM", names, ["y", "h", "c"], hidden_size=5),
        helper.make_node("Squeeze", ["y", "axes"], ["z"]),
    ]
    inputs = {"data": draw(1, 1, 6), "last": draw(1, 5, seed=4), "kept": draw(1, 5, seed=5)}
    weights = {"w": draw(1, 20, 6, seed=1), "r": draw(1, 20, 5, seed=2), "b": draw(1, 40, seed=3)}
    return Case("stateful", nodes, inputs, weights | {"axes": np.array([0])})


RECURRENT = [
    _stateful(),
    recurrent("rnn", "RNN"),
    recurrent("rnn_relu", "RNN", optional="bh", direction="reverse", activations=["Relu"]),
    recurrent("rnn_lengths", "RNN", optional="blh", direction="bidirectional"),
    recurrent("gru", "GRU", optional="b"),
    recurrent("gru_linear", "GRU", optional="blh", linear_before_reset=1, direction="reverse"),
    recurrent("gru_both", "GRU", optional="bh", linear_before_reset=1, direction="bidirectional"),
    recurrent("lstm", "LSTM", optional="b"),
    recurrent("lstm_reverse", "LSTM", optional="bhcp", direction="reverse"),
    recurrent("lstm_lengths", "LSTM", optional="blhc", direction="bidirectional"),
    recurrent(
        *("lstm_others", "LSTM"),
        optional="b",
        activations=["HardSigmoid", "ScaledTanh", "Softsign"],
        activation_alpha=[0.3, 0.9],
        activation_beta=[0.4, 0.8],
        clip=0.7,
    ),
    recurrent("lstm_single", "LSTM", optional="b", batch=1, direction="bidirectional"),
]


def _whole(*shape: int, dtype: str = "uint8", seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


_IMAGE = _whole(1, 4, 6, 6)
_KERNEL = _whole(6, 4, 3, 3, dtype="int8", seed=1)
_SCALE, _ZERO = np.float32(0.02), np.uint8(117)
_SCALES = np.linspace(0.01, 0.03, 6).astype("float32")
_LEFT, _RIGHT = _whole(5, 8), _whole(8, 7, dtype="int8", seed=1)


def _attention(name: str, mask: Array) -> Case:
    weight, bias = _whole(24, 48, dtype="int8", seed=1), draw(48, seed=2)
    return case(
        *(name, "QAttention", _whole(2, 5, 24)),
        weights=[weight, bias, _SCALE, np.float32(0.004), mask, _ZERO, np.int8(0)],
        domain="com.microsoft",
        num_heads=4,
    )


def _blocks(axis: int, block: int) -> list[Case]:
    """Return conversions of values with a scale and a zero point for each block of an axis."""
    shape = [4, 6, 8]
    shape[axis] = -(-shape[axis] // block)
    scale, zero = draw(*shape, seed=1) ** 2 + np.float32(0.1), _whole(*shape, dtype="int8", seed=2)
    options: dict[str, Any] = {"axis": axis, "block_size": block}
    name = f"{axis % 3}"
    return [
        case(
            *(f"blocks_{name}", "DequantizeLinear", _whole(4, 6, 8), scale),
            **(options | {"output_dtype": onnx.TensorProto.FLOAT16}),
        ),
        case(
            *(f"blocks_to_{name}", "QuantizeLinear", 100 * draw(4, 6, 8)),
            weights=[scale, zero],
            **options,
        ),
        case(
            *(f"blocks_from_{name}", "DequantizeLinear", _whole(4, 6, 8, dtype="int8")),
            weights=[scale, zero],
            **options,
        ),
    ]


QUANTISED = [
    *_blocks(0, 2),
    *_blocks(-2, 4),
    case("conv_integer", "ConvInteger", _IMAGE, weights=[_KERNEL, _ZERO], pads=[1, 0, 1, 2]),
    case(
        *("conv", "QLinearConv", _IMAGE),
        weights=[
            *(_SCALE, _ZERO, _KERNEL, _SCALES, np.zeros(6, "int8"), np.float32(0.7), np.uint8(131)),
            _whole(6, dtype="int16").astype("int32"),
        ],
        pads=[1] * 4,
    ),
    case("matmul_integer", "MatMulInteger", _LEFT, weights=[_RIGHT, _ZERO, np.int8(3)]),
    case(
        *("dynamic", "DynamicQuantizeMatMul", draw(5, 8)),
        weights=[_RIGHT, _SCALE, np.int8(3), draw(7, seed=1)],
        domain="com.microsoft",
    ),
    case(
        *("matmul_columns", "QLinearMatMul", _LEFT),
        weights=[
            *(_SCALE, _ZERO, _RIGHT, np.linspace(0.01, 0.03, 7).astype("float32")),
            *(np.zeros(7, "int8"), np.float32(0.3), np.uint8(120)),
        ],
    ),
    case(
        *("matmul_to_float", "MatMulIntegerToFloat", _LEFT),
        weights=[_RIGHT, _SCALE, np.linspace(0.01, 0.03, 7).astype("float32"), _ZERO],
        domain="com.microsoft",
    ),
    case(
        *("gemm", "QGemm", _LEFT),
        weights=[
            *(_SCALE, _ZERO, _RIGHT, np.linspace(0.01, 0.03, 7).astype("float32")),
            *(np.zeros(7, "int8"), _whole(7, dtype="int16").astype("int32")),
            *(np.float32(0.3), np.uint8(120)),
        ],
        domain="com.microsoft",
    ),
    case(
        *("times", "QLinearMul", _IMAGE),
        weights=[_SCALE, _ZERO, _IMAGE[:, :, ::-1], _SCALE, _ZERO, np.float32(0.083), _ZERO],
        domain="com.microsoft",
    ),
    _attention("masked_attention", np.array([[1] * 5, [1, 1, 1, 0, 0]], "int32")),
    case("dynamic_linear", "DynamicQuantizeLinear", draw(5, 8), n_outputs=3),
    case("dynamic_zero", "DynamicQuantizeLinear", np.zeros((5, 8), "float32"), n_outputs=3),
    case(
        "dynamic_infinite",
        "DynamicQuantizeLinear",
        np.array([-np.inf, 1, 2], "float32"),
        n_outputs=3,
    ),
    case("dynamic_tiny", "DynamicQuantizeLinear", np.array([1e-45, 1e-45], "float32"), n_outputs=3),
    case(
        *("add", "QLinearAdd", _IMAGE),
        weights=[_SCALE, _ZERO, _IMAGE[:, :, ::-1], _SCALE, _ZERO, np.float32(0.031), _ZERO],
        domain="com.microsoft",
    ),
    Case(
        "concat",
        [
            helper.make_node(
                *("QLinearConcat", ["s", "z", "a", "s", "z", "b", "t", "z"], ["y"]),
                domain="com.microsoft",
                axis=1,
            )
        ],
        {"a": _IMAGE, "b": _IMAGE[:, :2]},
        {name: np.asarray(n) for name, n in (("s", _SCALE), ("t", np.float32(0.04)), ("z", _ZERO))},
    ),
    case(
        *("lstm", "DynamicQuantizeLSTM", draw(4, 2, 6)),
        weights=[
            *(_whole(1, 6, 20, dtype="int8"), _whole(1, 5, 20, dtype="int8"), draw(1, 40)),
            *(None, None, None, None),
            *[np.array([0.004], "float32"), np.zeros(1, "int8")] * 2,
        ],
        n_outputs=3,
        hidden_size=5,
        domain="com.microsoft",
        # The original quantises its data and state in every step.
        tolerance=0.05,
    ),
]

_HEADS = draw(2, 4, 6, 8)
_SCORES, _CLASSES = draw(4, 5, 3), np.arange(12).reshape(4, 3) % 5
_POSITIVES = np.abs(draw(5)) + 0.5
FUNCTIONS = [
    case("attention", "Attention", _HEADS, draw(2, 4, 9, 8, seed=1), draw(2, 4, 9, 8, seed=2)),
    case(
        *("causal", "Attention", draw(2, 6, 32), draw(2, 6, 16), draw(2, 6, 16, seed=2)),
        q_num_heads=4,
        kv_num_heads=2,
        is_causal=1,
    ),
    case("rotary", "RotaryEmbedding", _HEADS, weights=[draw(2, 6, 4), draw(2, 6, 4, seed=3)]),
    case("celu", "Celu", draw(3, 5), alpha=0.7),
    case("likelihood", "NegativeLogLikelihoodLoss", _SCORES, _CLASSES, weights=[_POSITIVES]),
    case(
        *("entropy", "SoftmaxCrossEntropyLoss", _SCORES, _CLASSES),
        n_outputs=2,
        ignore_index=2,
        reduction="none",
    ),
]

_PICTURE = draw(1, 2, 6, 8)


def _mode(name: str) -> dict[str, Any]:
    return {"coordinate_transformation_mode": name}


def _resize(name: str, *sizes: float, **attributes: Any) -> Case:
    """Return a Resize to whole sizes, or by scales if one is a fraction."""
    by_scale = any(size != int(size) for size in sizes)
    weights: list[Any] = [None, None, np.array(sizes, "int64")]
    if by_scale:
        weights = [None, np.array(sizes, "float32")]
    return case(name, "Resize", _PICTURE, weights=weights, **attributes)


RESIZE = [
    _resize("nearest", 1, 2, 12, 16, mode="nearest", **_mode("asymmetric")),
    _resize("nearest_ceil", 1, 2, 7, 5, mode="nearest", nearest_mode="ceil"),
    _resize("linear_corners", 1, 2, 11, 5, mode="linear", **_mode("align_corners")),
    _resize("linear_scaled", 1.0, 1.0, 0.7, 1.3, mode="linear"),
    _resize("linear_torch", 1, 2, 1, 5, mode="linear", **_mode("pytorch_half_pixel")),
    _resize("linear_antialias", 1, 2, 3, 5, mode="linear", antialias=1),
    _resize("cubic", 1, 2, 9, 12, mode="cubic"),
    _resize("cubic_outside", 1, 2, 9, 5, mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1),
    _resize("some", 12, 4, mode="nearest", axes=[3, 2]),
    _resize("fitting", 12, 10, mode="linear", axes=[2, 3], keep_aspect_ratio_policy="not_larger"),
]

_POSITIVE = np.abs(draw(3, 4)) + 0.5
ELEMENTWISE = [
    case("largest", "Max", _ROWS, _ROWS[:, :1] * 0.5, np.float32(0.1) * _ROWS[0]),
    case("smallest", "Min", _ROWS, _ROWS[:1]),
    case("single", "Max", _ROWS),
    case("mean", "Mean", _ROWS, _ROWS * 2, _ROWS[:1]),
    case("equal_booleans", "Equal", _ROWS > 0, _ROWS[:, :1] > 0),
    case("equal_to_true", "Equal", _ROWS > 0, weights=[np.array(True)]),
    case("square", "Pow", _ROWS, weights=[np.array(2.0, "float32")]),
    case("cube", "Pow", _ROWS, weights=[np.array([3], "int64")]),
    case("root", "Pow", _POSITIVE, weights=[np.array(0.5, "float32")]),
    case("power", "Pow", _POSITIVE, draw(3, 4, seed=1)),
    case("whole_power", "Pow", np.arange(1, 7), weights=[np.array([5])]),
    # A scalar index removes the axis.
    case("selected", "Gather", _ROWS, weights=[np.array(-2)], axis=1),
    case(
        *("one_hot", "OneHot", np.array([[1, 9], [2, -4]])),
        weights=[np.array(10), np.array([2.0, 5.0], "float32")],
        axis=1,
    ),
]

_SIGNAL = draw(2, 12, 1, seed=4)
_SPECTRUM = draw(3, 12, 5, 2, seed=5)
_WINDOW = np.hanning(10)[:8].astype("float32")
FOURIER = [
    case("real", "DFT", _SIGNAL, weights=[None, np.array(1)]),
    case("onesided", "DFT", _SIGNAL, weights=[None, np.array(-2)], onesided=1),
    case("padded", "DFT", _SPECTRUM, weights=[np.array(16), np.array(1)]),
    case("cropped", "DFT", _SPECTRUM, weights=[np.array(9), np.array(1)]),
    case("inverse", "DFT", _SPECTRUM, weights=[None, np.array(1)], inverse=1),
    case("frames", "STFT", _SIGNAL, weights=[np.array(3), _WINDOW]),
    case("rectangles", "STFT", _SIGNAL, weights=[np.array(2), None, np.array(5)], onesided=0),
]

_MAPS = draw(1, 4, 5, 6)
_TIES = np.array([[2.0, 1.0, 2.0, 0.0, 2.0, 1.0], [0.0] * 6], "float32")
_INFINITE = np.array([-1.7, np.nan, np.inf, 6e4, -np.inf, 0.0], "float32")


def _deformed(name: str, *, mask: bool, group: int = 1, offset_group: int = 1) -> Case:
    offset = draw(1, 2 * 6 * offset_group, 3, 5, seed=1)
    weights: list[Any] = [draw(4, 4 // group, 2, 3, seed=2), offset, draw(4, seed=3)]
    weights += [np.abs(draw(1, 6 * offset_group, 3, 5, seed=4))] * mask
    attributes: dict[str, Any] = {"strides": [2, 1], "pads": [1, 0, 1, 1], "group": group}
    return case(
        *(name, "DeformConv", _MAPS), weights=weights, offset_group=offset_group, **attributes
    )


EXPANDED = [
    case(
        *("reversed", "ReverseSequence", draw(4, 3, 2)),
        weights=[np.array([1, 4, 2])],
    ),
    case("norm", "LpNormalization", np.vstack([draw(2, 4), np.zeros((1, 4), "float32")])),
    case(
        *("columns", "Col2Im", draw(2, 12, 12)),
        weights=[np.array([7, 6]), np.array([2, 3])],
        strides=[2, 1],
    ),
    case(
        *("pool", "MaxPool", _MAPS),
        n_outputs=2,
        kernel_shape=[3, 2],
        strides=[2, 1],
        pads=[1, 0, 1, 1],
    ),
    case("pool_same", "MaxPool", _MAPS, n_outputs=2, kernel_shape=[2, 3], auto_pad="SAME_LOWER"),
    case(
        *("unpool", "MaxUnpool", np.array([[[[5.0, 6.0], [7.0, 8.0]]]], "float32")),
        weights=[np.array([[[[5, 7], [13, 15]]]])],
        kernel_shape=[2, 2],
        strides=[2, 2],
    ),
    case("infinite", "IsInf", _INFINITE, detect_negative=0),
    case("negative_infinite", "IsInf", _INFINITE, detect_positive=0),
    case("infinite_half", "IsInf", _INFINITE.astype("float16"), detect_negative=0),
    _deformed("deformed", mask=False),
    _deformed("deformed_groups", mask=True, group=2, offset_group=2),
    case("first_of_equal", "TopK", _TIES, weights=[np.array([4])], n_outputs=2),
    case("last_of_equal", "TopK", _TIES, weights=[np.array([4])], n_outputs=2, largest=0),
]

_HIDDEN, _SKIP = draw(2, 3, 8), draw(2, 3, 8, seed=1)
_GAMMA, _BETA = draw(8, seed=2), draw(8, seed=3)
_CONTRIBUTED: dict[str, Any] = {"domain": "com.microsoft"}
CONTRIBUTED = [
    case(
        *("skip_biased", "SkipLayerNormalization", _HIDDEN, _SKIP),
        weights=[_GAMMA, _BETA, draw(8, seed=4)],
        epsilon=1e-5,
        **_CONTRIBUTED,
    ),
    case(
        *("skip_rms", "SkipSimplifiedLayerNormalization", _HIDDEN, _SKIP),
        weights=[_GAMMA, _BETA],
        epsilon=1e-6,
        **_CONTRIBUTED,
    ),
    case("rms", "SimplifiedLayerNormalization", _HIDDEN, weights=[_GAMMA]),
    case("quick", "QuickGelu", _HIDDEN, alpha=1.5, **_CONTRIBUTED),
    case(*("product", "FusedMatMul", _HIDDEN, _SKIP), transB=1, alpha=0.125, **_CONTRIBUTED),
    case(
        *("convolution", "FusedConv", _MAPS),
        weights=[draw(6, 4, 3, 3, seed=1), draw(6, seed=2)],
        activation="LeakyRelu",
        activation_params=[0.2],
        **_CONTRIBUTED,
    ),
    case(
        *("relu6", "FusedConv", _MAPS),
        weights=[draw(4, 4, 3, 3, seed=1), draw(4, seed=2), draw(*_MAPS.shape, seed=3)],
        activation="Clip",
        activation_params=[0.0, 6.0],
        pads=[1] * 4,
        **_CONTRIBUTED,
    ),
    *(
        case(f"{op}_of_halves", op, draw(1, 6, 3, 4).astype("float16"), tolerance=2e-3, **options)
        for op, options in _NARROW.items()
    ),
    _grouped_attention("cache", [6, 3], n_queries=1),
    _grouped_attention("cache_of_several", [6], n_queries=3),
    case(
        *("dense", "FusedGemm", _HIDDEN[0]),
        weights=[draw(8, 5, seed=1), draw(5, seed=2)],
        activation="LeakyRelu",
        activation_alpha=0.5,
        **_CONTRIBUTED,
    ),
]

_EDGES = np.array([[3], [0], [3], [7], [0], [3]])
SCATTERS = [
    case(
        *("rows", "ScatterND", draw(8, 5), _EDGES, draw(6, 5, seed=1)),
        reduction="add",
    ),
    case(
        *("elements", "ScatterElements", draw(8), _EDGES[:, 0], draw(6, seed=1)),
        reduction="add",
    ),
    case(
        *("largest", "ScatterElements", draw(8, 3), np.tile(_EDGES, 3), draw(6, 3, seed=1)),
        reduction="max",
    ),
]


@dataclass(frozen=True, eq=False)
class Family:
    """Cases that are one model.

    Attributes:
        name: Name of the family.
        cases: The cases.
        opset: Version of their operators.
    """

    name: str
    cases: Sequence[Case]
    opset: int = OPSET

    def check(self, each: Case, target: str) -> None:
        """Check that the outputs of a case have shape, dtype and values of ONNX Runtime's."""
        start = sum(len(other.outputs) for other in self.cases[: self.cases.index(each)])
        part = slice(start, start + len(each.outputs))
        for actual, expected in zip(*(side[part] for side in _outputs(self, target)), strict=True):
            assert actual.dtype == expected.dtype
            scale = max(1e-6, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
            np.testing.assert_allclose(
                actual / scale, expected / scale, rtol=0, atol=each.tolerance, strict=True
            )


@lru_cache(maxsize=1)
def _outputs(family: Family, target: str) -> tuple[list[Array], Sequence[Array]]:
    """Return the outputs of all cases of a family, and those of ONNX Runtime."""
    proto, feeds, expected = combine(family.cases, family.opset)
    return run_lowered(proto, feeds, target), expected


FAMILIES = [
    *(Family("contributed", CONTRIBUTED), Family("expanded", EXPANDED)),
    *(Family("fourier", FOURIER), Family("elementwise", ELEMENTWISE), Family("resize", RESIZE)),
    *(Family("functions", FUNCTIONS), Family("quantised", QUANTISED)),
    *(Family("recurrent", RECURRENT), Family("scans", SCANS), Family("scatters", SCATTERS)),
    Family("transposed convolutions", TRANSPOSED_CONVOLUTIONS),
]
