"""Quantised weights of float networks stay packed in a library, and are unpacked by the kernels."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.networks import build_proto, lower_proto, names_of
from tests.tuner.engines.relax.operator_cases import Case, case, combine
from tests.tuner.networks.models import Array, model
from tuner.engines.base import TargetInfo
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.schedules.cpu import packed_weights
from tuner.engines.relax.target.targets import make_target


def _bytes(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def _product(  # noqa: PLR0913  one for each choice of a case
    rows: tuple[int, ...],
    n_terms: int,
    n_columns: int,
    *,
    bits: int = 4,
    block: int = 32,
    zeros: Array | None = None,
    bias: Array | None = None,
) -> Case:
    """Return a MatMulNBits."""
    n_blocks = -(-n_terms // block)
    scales = np.abs(draw(n_columns * n_blocks, seed=3)) * np.float32(0.01) + np.float32(0.001)
    packed = _bytes(n_columns, n_blocks, block * bits // 8, seed=2)
    return case(
        *("", "MatMulNBits", draw(*rows, n_terms, seed=1)),
        weights=[packed, scales, zeros, None, bias],
        domain="com.microsoft",
        tolerance=1e-4,
        K=n_terms,
        N=n_columns,
        bits=bits,
        block_size=block,
    )


def _blocked(kind: str, axis: int, op: str = "MatMul", **attributes: Any) -> Case:
    """Return a product with weights that DequantizeLinear dequantises by blocks."""
    info = np.iinfo(kind)
    shape, scale_shape = ((64, 40), (4, 40)) if axis == 0 else ((40, 64), (40, 4))
    codes = np.random.default_rng(2).integers(info.min, info.max + 1, shape).astype(kind)
    scales = np.abs(draw(*scale_shape, seed=3)) * np.float32(0.01) + np.float32(0.001)
    zeros = np.random.default_rng(4).integers(info.min, info.max + 1, scale_shape).astype(kind)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=axis, block_size=16),
        helper.make_node(op, ["x", "d"], ["y"], **attributes),
    ]
    weights = {"w": codes, "s": scales, "z": zeros}
    return Case("", nodes, {"x": draw(5, 64, seed=1)}, weights, tolerance=1e-4)


def _chained() -> Case:
    """Return two products of float16; the type of what the second multiplies is not inferred."""
    nodes = [helper.make_node("Cast", ["x"], ["h0"], to=TensorProto.FLOAT16)]
    weights: dict[str, Array] = {}
    sizes = {"K": 64, "N": 64, "bits": 4, "block_size": 32}
    for i in range(2):
        inputs = [f"h{i}", f"c{i}", f"s{i}"]
        node = helper.make_node(
            "MatMulNBits", inputs, [f"h{i + 1}"], domain="com.microsoft", **sizes
        )
        nodes.append(node)
        weights |= {f"c{i}": _bytes(64, 2, 16, seed=i), f"s{i}": np.full(128, 0.01, "float16")}
    nodes.append(helper.make_node("Cast", ["h2"], ["y"], to=TensorProto.FLOAT))
    return Case("chained", nodes, {"x": draw(3, 64, seed=1)}, weights, tolerance=5e-3)


def _by_column() -> Case:
    """Return a product with a scale for each column of its weights."""
    codes = np.random.default_rng(2).integers(-128, 128, (64, 40)).astype("int8")
    scales = np.linspace(0.001, 0.01, 40).astype("float32")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=1),
        helper.make_node("MatMul", ["x", "d"], ["p"]),
        helper.make_node("Relu", ["p"], ["y"]),
    ]
    weights = {"w": codes, "s": scales, "z": np.zeros(40, "int8")}
    return Case("", nodes, {"x": draw(2, 3, 64, seed=1)}, weights, tolerance=1e-4)


_MODELS: dict[str, Callable[[], Case]] = {
    "symmetric": lambda: _product((1,), 64, 96),
    "odd-zeros": lambda: _product((4,), 96, 32, zeros=_bytes(32 * 2, seed=5)),
    "bytes-zeros": lambda: _product((3,), 64, 32, bits=8, zeros=_bytes(32 * 2, seed=5)),
    "bias": lambda: _product((2, 3), 64, 40, bias=draw(40, seed=6)),
    "prime-rows": lambda: _product((1, 37), 64, 32),
    "blocked": lambda: _blocked("int8", 0),
    "blocked-terms": lambda: _blocked("uint8", 1, "Gemm", transB=1),
    "by-column": _by_column,
}
_CASES = {name: replace(make(), name=name) for name, make in _MODELS.items()}
# Weights that are folded to floats.
_FLOAT_MODELS: dict[str, Callable[[], Case]] = {
    "float-zeros": lambda: _product((4,), 64, 32, zeros=draw(64, seed=5)),
    "rest": lambda: _product((4,), 80, 32),
    "blocked-int16": lambda: _blocked("int16", 0),
}
_FLOAT_CASES = {name: replace(make(), name=name) for name, make in _FLOAT_MODELS.items()}


def _exact(each: Case) -> Array:
    """Return the output of a product whose data ONNX Runtime quantises too."""
    axis = each.weights["w"].shape.index(64)
    codes, scales, zeros = (each.weights[name].astype("float64") for name in "wsz")
    if scales.ndim > 1:
        scales, zeros = (np.repeat(value, 16, axis) for value in (scales, zeros))
    weight = (codes - zeros) * scales
    product = np.asarray(each.inputs["x"] @ (weight.T if axis else weight))
    return product.clip(0) if each.nodes[-1].op_type == "Relu" else product


def test_outputs_are_those_of_onnxruntime(target: TargetInfo, tmp_path: Path) -> None:
    """Kernels by rule and folded weights agree."""
    cases = [*_CASES.values(), *_FLOAT_CASES.values(), _chained()]
    proto, feeds, expected = combine(cases)

    actual = build_proto(proto, target, tmp_path)(feeds).values()

    for each, left, theirs in zip(cases, actual, expected, strict=True):
        right = theirs if "w" not in each.weights else _exact(each)
        scale = float(np.abs(right).max())
        np.testing.assert_allclose(
            left / scale, right / scale, rtol=0, atol=each.tolerance, err_msg=each.name
        )


@pytest.mark.parametrize("name", _CASES)
def test_weights_stay_packed(target: TargetInfo, name: str) -> None:
    """Each product has a kernel that unpacks its weights, scheduled by rule."""
    module, _ = lower_proto(combine([_CASES[name]])[0], target.spec)
    (subgraph,) = (each for each in find_subgraphs(module) if "weight_product" in each.name)
    n_columns, n_terms = 16, 64
    (packed,) = (
        param
        for param in subgraph.module["main"].params
        if str(param.dtype) == "uint8" and int(param.shape[1]) >= n_terms // 2
    )

    trace = ranking.compute_trace(subgraph.module, make_target(target.spec))

    assert int(packed.shape[2]) == n_columns
    assert packed_weights.MARK in trace


def test_other_weights_are_folded(target: TargetInfo) -> None:
    """Zero points that are not whole numbers, and codes of 16 bits, have no place in a byte."""
    names = names_of(combine(list(_FLOAT_CASES.values()))[0], target.spec)

    assert not [name for name in names if "weight_product" in name]


@pytest.mark.parametrize(("kind", "block"), [(TensorProto.INT4, 0), (TensorProto.UINT4, 16)])
def test_weights_of_4_bits_load(target: TargetInfo, tmp_path: Path, kind: int, block: int) -> None:
    """Types of 4 bits, with a scale for each block or each column."""
    low = -8 if kind == TensorProto.INT4 else 0
    numbers = np.random.default_rng(2).integers(low, low + 16, (64, 48))
    scales = np.linspace(0.01, 0.1, 48, dtype="float32")
    zeros = np.full(48, 3)
    if block:
        scales, zeros = (np.tile(each, (4, 1)) for each in (scales, zeros))
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    attributes = {"block_size": block} if block else {}
    axis = 0 if block else 1
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=axis, **attributes),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    weights = {"w": numbers.astype(dtype), "s": scales, "z": zeros.astype(dtype)}
    data = draw(3, 64, seed=1)
    proto = model(nodes, {"x": data}, {"y": (3, 48)}, weights, opset=21)
    each_scale, each_zero = (np.repeat(v, 16, 0) if block else v for v in (scales, zeros))

    (actual,) = build_proto(proto, target, tmp_path)({"x": data}).values()

    assert [name for name in names_of(proto, target.spec) if "weight_product" in name]
    expected = data @ ((numbers - each_zero) * each_scale)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
