"""Quantised networks multiply bytes where the CPU can, and compute what ONNX Runtime does."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import te
from tvm.s_tir import Schedule

from tests.tuner.engines.relax.conftest import described
from tests.tuner.engines.relax.networks import build_proto, lower_proto, names_of, run_module
from tests.tuner.engines.relax.operator_cases import Case, combine
from tests.tuner.networks.models import Array
from tuner import cost_models
from tuner.engines.base import MeasuredTrace, SearchRequest, TargetInfo
from tuner.engines.relax import worker
from tuner.engines.relax.codegen.cpu.dot_instructions import dot_instruction
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.schedules import catalogue, ranking
from tuner.engines.relax.schedules.cpu import dots
from tuner.engines.relax.schedules.variants.winograd import Winograd
from tuner.engines.relax.search import propose
from tuner.engines.relax.target.targets import make_target

# Each has another instruction; LLVM compiles for all of them anywhere.
_CPUS = {
    "icelake-server": "dot_16x4_vnni",
    "alderlake": "dot_8x4_vnni",
    "haswell": "dot_8x2_madd",
    "x86-64-v2": "dot_4x2_madd",
}
_VNNI = '{"kind":"llvm","mcpu":"icelake-server","num-cores":2}'


def _whole(*shape: int, dtype: str, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


class _Graph:
    """A graph under construction that begins at ``data``."""

    def __init__(self, data: Array) -> None:
        self.data = data
        self.nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, Array] = {}

    def const(self, value: Any) -> str:
        """Return the name of a constant."""
        name = f"w{len(self._weights)}"
        self._weights[name] = np.asarray(value)
        return name

    def add(self, op: str, *inputs: Any, output: str = "", **attributes: Any) -> str:
        """Add a node; inputs that are not names are constants."""
        names = [each if isinstance(each, str) else self.const(each) for each in inputs]
        output = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [output], **attributes))
        return output

    def requantised(self, value: str, scale: float, zero: Any) -> str:
        """Quantise a value and dequantise it."""
        codes = self.add("QuantizeLinear", value, np.float32(scale), zero)
        return self.add("DequantizeLinear", codes, np.float32(scale), zero)

    def finish(self, value: str) -> Case:
        """Return the case of the graph up to a value."""
        assert self.nodes[-1].output[0] == value
        return Case("", self.nodes, {"data": self.data}, self._weights)


def _qdq_conv(  # noqa: PLR0913  one for each choice of a case
    activation: str = "uint8",
    *,
    per_channel: bool = True,
    zero: int = 3,
    relu: bool = False,
    n_columns: int = 32,
    size: int = 12,
    n_inputs: int = 16,
    kernel: int = 3,
    **attributes: Any,
) -> Case:
    """Return a quantised convolution as ONNX Runtime's quantiser writes it."""
    data = np.random.default_rng(1).standard_normal((1, n_inputs, size, size)).astype("float32")
    graph = _Graph(data)
    kind = np.dtype(activation).type
    value = graph.requantised("data", 0.03, kind(zero))
    weight = _whole(n_columns, n_inputs, kernel, kernel, dtype="int8", seed=2)
    scales = np.linspace(0.001, 0.003, n_columns if per_channel else 1).astype("float32")
    scale = scales if per_channel else scales[0]
    zeros = np.zeros(scale.shape, "int8")
    bias = _whole(n_columns, dtype="int16", seed=3).astype("int32")
    product_scale = (scales * np.float32(0.03)).astype("float32")
    inputs = [
        graph.add("DequantizeLinear", weight, scale, zeros, axis=0),
        graph.add(
            "DequantizeLinear",
            bias,
            product_scale if per_channel else product_scale[0],
            np.zeros(scale.shape, "int32"),
            axis=0,
        ),
    ]
    value = graph.add("Conv", value, *inputs, **attributes)
    if relu:
        value = graph.add(
            *(("Clip", value, np.float32(0), np.float32(6)) if zero else ("Relu", value))
        )
    value = graph.requantised(value, 0.11, kind(zero))
    return graph.finish(value)


def _qdq_matmul() -> Case:
    data = np.random.default_rng(1).standard_normal((5, 40)).astype("float32")
    graph = _Graph(data)
    value = graph.requantised("data", 0.02, np.uint8(7))
    weight = _whole(40, 48, dtype="int8", seed=2)
    dequantised = graph.add("DequantizeLinear", weight, np.float32(0.004), np.int8(0))
    value = graph.add("MatMul", value, dequantised)
    return graph.finish(graph.requantised(value, 0.1, np.uint8(9)))


def _qdq_gemm() -> Case:
    data = np.random.default_rng(1).standard_normal((3, 40)).astype("float32")
    graph = _Graph(data)
    value = graph.requantised("data", 0.02, np.uint8(130))
    weight = _whole(20, 40, dtype="int8", seed=2)
    bias = _whole(20, dtype="int16", seed=3).astype("int32")
    terms = [
        graph.add("DequantizeLinear", weight, np.float32(0.004), np.int8(0)),
        graph.add("DequantizeLinear", bias, np.float32(0.02) * np.float32(0.004), np.int32(0)),
    ]
    value = graph.add("Gemm", value, *terms, transB=1)
    return graph.finish(graph.requantised(value, 0.1, np.uint8(120)))


def _dynamic(weight_dtype: str = "int8", zero: int = 0) -> Case:
    data = np.random.default_rng(1).standard_normal((2, 7, 40)).astype("float32")
    graph = _Graph(data)
    codes, scale, number = "codes", "scale", "zero"
    graph.nodes.append(helper.make_node("DynamicQuantizeLinear", ["data"], [codes, scale, number]))
    weight = _whole(40, 50, dtype=weight_dtype, seed=2)
    value = graph.add("MatMulInteger", codes, weight, number, np.dtype(weight_dtype).type(zero))
    value = graph.add("Cast", value, to=onnx.TensorProto.FLOAT)
    factor = graph.add("Mul", scale, np.float32(0.01))
    value = graph.add("Mul", value, factor)
    return graph.finish(graph.add("Add", value, _whole(50, dtype="int8").astype("float32")))


def _dynamic_conv() -> Case:
    data = np.random.default_rng(1).standard_normal((1, 16, 9, 9)).astype("float32")
    graph = _Graph(data)
    codes, scale, number = "codes", "scale", "zero"
    graph.nodes.append(helper.make_node("DynamicQuantizeLinear", ["data"], [codes, scale, number]))
    weight = _whole(24, 16, 3, 3, dtype="int8", seed=2)
    value = graph.add("ConvInteger", codes, weight, number, pads=[1, 0, 1, 2])
    value = graph.add("Cast", value, to=onnx.TensorProto.FLOAT)
    return graph.finish(graph.add("Mul", value, scale))


def _qlinear_conv() -> Case:
    data = _whole(1, 16, 9, 9, dtype="uint8")
    graph = _Graph(data)
    value = graph.add(
        *("QLinearConv", "data", np.float32(0.02), np.uint8(117)),
        *(_whole(32, 16, 3, 3, dtype="int8", seed=2), np.linspace(0.01, 0.03, 32, dtype="float32")),
        *(np.zeros(32, "int8"), np.float32(2.7), np.uint8(131)),
        _whole(32, dtype="int16").astype("int32"),
        pads=[1] * 4,
        strides=[2, 2],
    )
    return graph.finish(value)


def _limited_conv(limits: tuple[tuple[float, float], ...], scale: float, zero: Any) -> Case:
    """Return a convolution whose results are limited before they are quantised."""
    data = np.random.default_rng(1).standard_normal((1, 16, 5, 5)).astype("float32")
    graph = _Graph(data)
    value = graph.requantised("data", 0.03, type(zero)(7))
    weight = _whole(16, 16, 1, 1, dtype="int8", seed=2)
    value = graph.add(
        "Conv", value, graph.add("DequantizeLinear", weight, np.float32(0.002), np.int8(0))
    )
    for low, high in limits:
        value = graph.add("Clip", value, np.float32(low), np.float32(high))
    return graph.finish(graph.requantised(value, scale, zero))


def _large_bias() -> Case:
    """Return a product with biases at the ends of int32."""
    data = np.random.default_rng(1).standard_normal((3, 40)).astype("float32")
    graph = _Graph(data)
    value = graph.requantised("data", 0.02, np.uint8(130))
    weight = _whole(16, 40, dtype="int8", seed=2)
    scales = np.full(16, 0.004, "float32")
    scales[:4] = 1e-9
    bias = np.zeros(16, "int32")
    bias[:4] = [2**31 - 1, -(2**31) + 1, 2**31 - 9, 0]
    terms = [
        graph.add("DequantizeLinear", weight, scales, np.zeros(16, "int8"), axis=0),
        graph.add(
            "DequantizeLinear", bias, scales * np.float32(0.02), np.zeros(16, "int32"), axis=0
        ),
    ]
    value = graph.add("Gemm", value, *terms, transB=1)
    return graph.finish(graph.requantised(value, 1e-5, np.uint8(120)))


def _padded_channels() -> Case:
    """Return a convolution of codes that have further channels in front."""
    data = np.random.default_rng(1).standard_normal((1, 14, 6, 6)).astype("float32")
    graph = _Graph(data)
    codes = graph.add("QuantizeLinear", "data", np.float32(0.03), np.uint8(100))
    widths = np.array([0, 2, 0, 0, 0, 0, 0, 0])
    padded = graph.add("Pad", codes, widths, np.uint8(100))
    value = graph.add("DequantizeLinear", padded, np.float32(0.03), np.uint8(100))
    weight = _whole(16, 16, 1, 1, dtype="int8", seed=2)
    value = graph.add(
        "Conv", value, graph.add("DequantizeLinear", weight, np.float32(0.002), np.int8(0))
    )
    return graph.finish(graph.requantised(value, 0.05, np.uint8(120)))


def _half_steps(
    shape: tuple[int, ...], op: str, weight: Array, kind: str = "uint8", **attributes: Any
) -> Case:
    """Return a product whose results lie half-way between two codes, in every second place."""
    data = np.random.default_rng(1).standard_normal(shape).astype("float32")
    graph = _Graph(data)
    zero = np.dtype(kind).type(7)
    value = graph.requantised("data", 0.1, zero)
    second = graph.add("DequantizeLinear", weight, np.float32(0.1), weight.dtype.type(0))
    value = graph.add(op, value, second, **attributes)
    return graph.finish(graph.requantised(value, 0.02, zero))


def _of_two(op: str, kind: str = "uint8", *, relu: bool = False) -> Case:
    """Return a sum or product of two tensors of different scales."""
    data = np.random.default_rng(1).standard_normal((1, 8, 40, 40)).astype("float32")
    graph = _Graph(data)
    zero = np.dtype(kind).type(0 if relu else 7)
    left = graph.requantised("data", 0.01, zero)
    right = graph.requantised(graph.add("Neg", "data"), 0.03, zero)
    value = graph.add(op, left, right)
    if relu:
        value = graph.add("Relu", value)
    return graph.finish(graph.requantised(value, 0.02, zero))


def _average(op: str, **attributes: Any) -> Case:
    data = np.random.default_rng(1).standard_normal((1, 64, 4, 4)).astype("float32")
    graph = _Graph(data)
    value = graph.requantised("data", 0.03, np.uint8(117))
    return graph.finish(graph.requantised(graph.add(op, value, **attributes), 0.03, np.uint8(117)))


def _attention() -> Case:
    """Return a product of two quantised tensors."""
    data = np.random.default_rng(1).standard_normal((2, 3, 40, 32)).astype("float32")
    graph = _Graph(data)
    left = graph.requantised("data", 0.1, np.uint8(117))
    turned = graph.add("Transpose", left, perm=[0, 1, 3, 2])
    right = graph.requantised(turned, 0.1, np.uint8(117))
    value = graph.add("MatMul", left, right)
    return graph.finish(graph.requantised(value, 0.02, np.uint8(120)))


_KERNEL = _whole(32, 1, 3, 3, dtype="int8", seed=2) // 8
# What the instruction does not fit: whole numbers in float32.
_FLOAT_MODELS: dict[str, Callable[[], Case]] = {
    "depthwise": lambda: _half_steps((1, 32, 24, 24), "Conv", _KERNEL, group=32, pads=[1] * 4),
    "grouped": lambda: _half_steps(
        *((1, 32, 12, 12), "Conv", _whole(16, 8, 3, 3, dtype="int8", seed=2) // 32), group=4
    ),
    "few-terms": lambda: _half_steps((300, 9), "MatMul", _whole(9, 30, dtype="int8") // 8),
    "data": _attention,
    "sum": lambda: _of_two("Add"),
    "sum-relu": lambda: _of_two("Add", relu=True),
    "times-signed": lambda: _of_two("Mul", "int8"),
    "average": lambda: _average("GlobalAveragePool"),
}

_MODELS: dict[str, Callable[[], Case]] = {
    "conv": lambda: _qdq_conv(pads=[1] * 4),
    "conv-relu": lambda: _qdq_conv(zero=0, relu=True, pads=[1] * 4),
    "conv-clip": lambda: _qdq_conv(relu=True),
    "conv-strided": lambda: _qdq_conv(per_channel=False, strides=[2, 2], pads=[0, 1, 2, 0]),
    "conv-signed-channels": lambda: _qdq_conv("int8", zero=-5, pads=[1] * 4),
    "conv-1x1": lambda: _qdq_conv(kernel=1, size=7),
    "conv-odd": lambda: _qdq_conv(n_columns=21, n_inputs=5, size=11, pads=[1] * 4),
    "matmul": _qdq_matmul,
    "gemm": _qdq_gemm,
    "dynamic": _dynamic,
    "dynamic-unsigned": lambda: _dynamic("uint8", 128),
    "dynamic-conv": _dynamic_conv,
    "qlinear-conv": _qlinear_conv,
    "limits-above-codes": lambda: _limited_conv(((0.5, 6.0),), 0.1, np.uint8(255)),
    "limits-apart": lambda: _limited_conv(((0.0, 9.0), (-6.0, -1.0)), 0.1, np.int8(0)),
    "padded-channels": _padded_channels,
}


# Cases whose kernels every run compiles.
_QUICK = (
    *("conv-relu", "conv-signed-channels", "conv-odd", "gemm", "dynamic-conv", "qlinear-conv"),
    *("limits-above-codes", "limits-apart", "padded-channels"),
)
_CASES = {name: replace(make(), name=name) for name, make in _MODELS.items()}
_FLOAT_CASES = {name: replace(make(), name=name) for name, make in _FLOAT_MODELS.items()}


def _runnable(mcpu: str) -> TargetInfo:
    target = described(mcpu)
    if target.problem:
        pytest.skip(target.problem)
    return target


def _is_tensorised(trace: str) -> bool:
    return any(name in trace for name in dots.INTRINSICS)


@lru_cache(maxsize=2)
def _outputs(target: str, names: tuple[str, ...]) -> dict[str, tuple[Array, Array]]:
    """Return the outputs of some cases, and those of ONNX Runtime."""
    proto, feeds, expected = combine([(_CASES | _FLOAT_CASES)[name] for name in names])
    module, file = lower_proto(proto, target)
    for subgraph in find_subgraphs(module):
        trace = ranking.compute_trace(subgraph.module, make_target(target))
        if _is_tensorised(trace):
            scheduled = traces.schedule_module(subgraph.module, trace, make_target(target))["main"]
            for name in subgraph.functions:
                function = scheduled.with_attr("global_symbol", name)
                variable = module.get_global_var(name)
                module.update_func(variable, function.with_attr("tirx.is_scheduled", True))
    pairs = zip(run_module(module, file, feeds, target), expected, strict=True)
    return dict(zip(names, pairs, strict=True))


def _check(name: str, actual: Array, expected: Array) -> None:
    assert actual.dtype == expected.dtype
    if name.startswith("dynamic"):
        # Scales that are computed differ in their last bits.
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[] if name in _QUICK else pytest.mark.slow("compiles further kernels"),
        )
        for name in _CASES
    ],
)
@pytest.mark.parametrize(
    "mcpu",
    [
        *("icelake-server", "alderlake", "haswell"),
        pytest.param("x86-64-v2", marks=pytest.mark.slow("half as many lanes of the same")),
    ],
)
def test_outputs_are_those_of_onnxruntime(mcpu: str, name: str) -> None:
    """Sums of products of bytes are scaled and rounded to the same bits on every CPU."""
    others = tuple(each for each in _CASES if each not in _QUICK)
    _check(name, *_outputs(_runnable(mcpu).spec, _QUICK if name in _QUICK else others)[name])


@pytest.mark.parametrize("name", _FLOAT_CASES)
def test_whole_numbers_in_float32_are_exact(target: TargetInfo, name: str) -> None:
    """Results half-way between two codes are rounded as in ONNX Runtime."""
    _check(name, *_outputs(target.spec, tuple(_FLOAT_CASES))[name])


@pytest.mark.parametrize("name", ["depthwise", "grouped"])
def test_convolutions_in_groups_read_bytes(target: TargetInfo, name: str) -> None:
    """No float32 copy of the data is written to memory in front of such a convolution."""
    module, _ = lower_proto(combine([_FLOAT_CASES[name]])[0], target.spec)
    (kernel,) = (each for each in find_subgraphs(module) if "grouped_conv2d" in each.name)

    assert str(kernel.module["main"].params[0].dtype) == "uint8"


def test_a_large_bias_does_not_overflow(target: TargetInfo) -> None:
    """Results near both ends of int32 saturate; in ONNX Runtime, which adds integers, they wrap."""
    proto, feeds, _ = combine([replace(_large_bias(), name="large")])

    module, file = lower_proto(proto, target.spec)
    (actual,) = run_module(module, file, feeds, target.spec)

    assert np.sign(actual[:, :4]).tolist() == [[1, -1, 1, 0]] * 3


@pytest.mark.parametrize(
    "name",
    [
        "conv-odd",
        *(
            pytest.param(name, marks=pytest.mark.slow("compiles and verifies further kernels"))
            for name in _CASES
            if name != "conv-odd"
        ),
    ],
)
def test_kernels_by_rule_multiply_vectors_of_bytes(
    target: TargetInfo, name: str, tmp_path: Path
) -> None:
    """A library without records has the instruction in each product, and the same outputs."""
    proto, feeds, expected = combine([_CASES[name]])

    (actual,) = build_proto(proto, target, tmp_path)(feeds).values()

    _check(name, actual, expected[0])


@pytest.mark.parametrize(
    ("case", "spec"),
    [
        # With AVX-512 alone, pairs of 16-bit integers take as long as floats.
        (_CASES["conv-1x1"], '{"kind":"llvm","mcpu":"skylake-avx512"}'),
        # It fills too little of an instruction.
        (_qdq_conv(n_inputs=3, kernel=1), _VNNI),
        # Its centred weights pass a byte.
        (_dynamic("uint8", 7), _VNNI),
    ],
    ids=["without-vnni", "few-terms", "two-zero-points"],
)
def test_products_that_gain_nothing_stay_floats(case: Case, spec: str) -> None:
    """No instruction for bytes is faster, or has the weights."""
    names = names_of(combine([replace(case, name="case")])[0], spec)

    assert not [name for name in names if "dot_" in name]


def test_no_variant_fits_whole_numbers() -> None:
    """Winograd's sums are not whole, so that their conversion to integers would cut them off."""
    weight = _whole(16, 16, 3, 3, dtype="uint8")
    case = replace(_half_steps((1, 16, 12, 12), "Conv", weight, pads=[1] * 4), name="whole")
    module, _ = lower_proto(combine([case])[0], worker.describe_target(_VNNI).spec)
    (subgraph,) = (each for each in find_subgraphs(module) if "conv2d" in each.name)

    assert Winograd(4).rewrite(subgraph.module) is not None
    assert not catalogue.fitting(subgraph.module)


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("mcpu", _CPUS)
def test_only_packed_weights_are_tensorised(mcpu: str, is_packed: bool) -> None:
    """The instruction reads the terms of its columns as one vector, and nothing else compiles."""
    target = make_target(described(mcpu).spec)
    by = dot_instruction(target)
    assert by is not None
    data = te.placeholder((16, 64), by.data, "data")
    shape = (64 // by.terms, 16, by.terms) if is_packed else (16, 64)
    weight = te.placeholder(shape, by.weight, "weight")
    k = te.reduce_axis((0, 64), "k")

    def product(i: Any, j: Any) -> Any:
        number = weight[k // by.terms, j, k % by.terms] if is_packed else weight[j, k]
        return te.sum(data[i, k].astype("int32") * number.astype("int32"), k)

    sums = te.compute((16, 16), product, name="product")
    schedule = Schedule(te.create_prim_func([data, weight, sums]))
    block = schedule.get_sblock("product")
    _, column, term = schedule.get_loops(block)
    outer, inner = schedule.split(term, [None, by.terms])
    _, lanes = schedule.split(column, [None, by.lanes])
    schedule.reorder(outer, lanes, inner)
    schedule.decompose_reduction(block, outer)
    schedule.tensorize(lanes, by.name)

    context = nullcontext() if is_packed else pytest.raises(RuntimeError)
    with context:
        tvm.compile(schedule.mod, target)


@pytest.mark.parametrize("mcpu", _CPUS)
def test_products_are_tensorised(mcpu: str) -> None:
    """Each product is found, and has a schedule by rule with the intrinsic."""
    spec = described(mcpu).spec
    # The others have the same rules, and lanes of this one.
    cases = _QUICK if mcpu == "icelake-server" else _QUICK[:3]
    module, _ = lower_proto(combine([_CASES[name] for name in cases])[0], spec)
    subgraphs = find_subgraphs(module)
    products = [each for each in subgraphs if "dot_" in each.name]

    assert sum(each.n_calls for each in products) >= len(cases)
    # Of the two operands of a sum, none is left in float32.
    assert not [each for each in subgraphs if each.name.startswith(("conv2d", "matmul"))]
    for subgraph in products:
        trace = ranking.compute_trace(subgraph.module, make_target(spec))
        assert _CPUS[mcpu] in trace, subgraph.name


@pytest.mark.parametrize("mcpu", ["icelake-server", "haswell"])
def test_a_search_measures_other_tiles(mcpu: str) -> None:
    """The schedule by rule comes first; what was measured is not proposed again."""
    spec = described(mcpu).spec
    module, _ = lower_proto(combine([_CASES["conv"]])[0], spec)
    (subgraph,) = (each for each in find_subgraphs(module) if "dot_" in each.name)
    model = cost_models.create("random", 1).save()
    ir = workloads.dump(subgraph.module)
    request = SearchRequest(ir, spec, (), model, 4, 16, 1, seed=1)

    first = propose.propose(request)
    known = tuple(MeasuredTrace(each.trace, each.module_hash, 1.0) for each in first)
    second = propose.propose(replace(request, measured=known))

    assert first[0].trace == ranking.compute_trace(subgraph.module, make_target(spec))
    assert all(_is_tensorised(each.trace) for each in (*first, *second))
    assert len({each.module_hash for each in (*first, *second)}) == 8
