"""Winograd's convolution of bytes: matrices, the workloads that it fits, and exact sums."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.tuner.engines.relax.conftest import Array, described
from tests.tuner.engines.relax.networks import build_proto, lower_proto
from tests.tuner.networks.models import Spec, model
from tuner.engines.base import variant_of
from tuner.engines.relax.graph.extract import Subgraph, find_subgraphs
from tuner.engines.relax.ir import traces
from tuner.engines.relax.schedules import catalogue, ranking
from tuner.engines.relax.schedules.variants.winograd import Winograd
from tuner.engines.relax.schedules.variants.winograd_transforms import (
    integer_matrices,
    max_exact,
)
from tuner.engines.relax.target.targets import make_target

_SIZES = [2, 4]


@pytest.mark.parametrize("n_outputs", _SIZES)
def test_32_bits_of_the_products_give_the_outputs(n_outputs: int) -> None:
    """The factors of the outputs divide what is left modulo 2**32."""
    random = np.random.default_rng(0)
    data = random.integers(0, 256, (n_outputs + 2,) * 2)
    taps = random.integers(-128, 128, (3, 3))
    of_data, of_weights, of_outputs, factors = (
        np.array(each).astype(int) for each in integer_matrices(n_outputs)
    )

    products = (of_weights @ taps @ of_weights.T) * (of_data @ data @ of_data.T)
    outputs = of_outputs @ products @ of_outputs.T

    windows = np.lib.stride_tricks.sliding_window_view(data, (3, 3))
    expected = (windows * taps).sum((2, 3))
    np.testing.assert_array_equal(outputs, expected * np.outer(factors, factors))
    assert max_exact(n_outputs) == {2: 2**29, 4: 2**25}[n_outputs]


@pytest.mark.parametrize("n_outputs", _SIZES)
def test_transformed_bytes_have_16_bits(n_outputs: int) -> None:
    """Neither the largest data nor the largest weights pass the range of the instruction."""
    of_data, of_weights, *_ = integer_matrices(n_outputs)

    for matrix, low, high in ((of_data, 0, 255), (of_weights, -128, 127)):
        rows = np.einsum("ik,jl->ijkl", matrix, matrix)
        highest = np.maximum(rows * low, rows * high).sum((2, 3)).max()
        lowest = np.minimum(rows * low, rows * high).sum((2, 3)).min()
        assert -(2**15) <= lowest <= highest < 2**15


def _drawn(*shape: int, low: int = -128, high: int = 127, seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    return random.integers(low, high, shape, endpoint=True)


class Case(NamedTuple):
    """A convolution of bytes.

    Attributes:
        data: Bytes without a sign, NCHW.
        weight: Bytes with a sign, OIHW.
        zero: Zero point of the data, also of the padding.
        pads: Padding at the top, the left, the bottom and the right.
    """

    data: Array
    weight: Array
    zero: int = 0
    pads: tuple[int, ...] = (1, 1, 1, 1)

    def sums(self) -> Array:
        """Compute the sums exactly."""
        top, left, bottom, right = self.pads
        data = self.data.astype(np.int64) - self.zero
        padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.weight.shape[2:], (2, 3))
        return np.asarray(np.einsum("bcyxij,ocij->boyx", windows, self.weight))


def _model(**cases: Case) -> onnx.ModelProto:
    """Return convolutions of bytes that give their sums."""
    nodes: list[onnx.NodeProto] = []
    inputs: dict[str, Spec] = {}
    outputs: dict[str, Spec] = {}
    weights: dict[str, Any] = {}
    for name, case in cases.items():
        x, w, z, sums, y = (f"{name}_{each}" for each in ("x", "w", "z", "sums", "y"))
        nodes.append(helper.make_node("ConvInteger", [x, w, z], [sums], pads=case.pads))
        nodes.append(helper.make_node("Cast", [sums], [y], to=TensorProto.FLOAT))
        inputs[x], outputs[y] = case.data.astype(np.uint8), case.sums().shape
        weights |= {w: case.weight.astype(np.int8), z: np.uint8(case.zero)}
    return model(nodes, inputs, outputs, weights)


def _convolutions(proto: onnx.ModelProto, spec: str) -> list[Subgraph]:
    subgraphs = find_subgraphs(lower_proto(proto, spec)[0])
    return [each for each in subgraphs if "dot_conv2d" in each.name]


_ENDS = np.where(_drawn(16, 16, 3, 3, low=0, high=1) > 0, 127, -128)
_CASES = {
    "odd": Case(_drawn(2, 16, 5, 9, low=0, high=255), _drawn(32, 16, 3, 3), 7, (2, 1, 0, 1)),
    "ends": Case(_drawn(1, 16, 7, 8, low=0, high=1) * 255, _ENDS, 255),
    # No other channel could be added: sums are near the bound for tiles of 4 by 4.
    "lowest": Case(np.full((1, 112, 4, 4), 255), np.full((16, 112, 3, 3), -128)),
}


@pytest.mark.parametrize(
    ("mcpu", "n_outputs", "names"),
    [
        ("haswell", 4, ("odd", "lowest")),
        ("haswell", 2, ("ends",)),
        pytest.param(
            *("x86-64-v2", 4, ("odd",)), marks=pytest.mark.slow("half as many lanes of the same")
        ),
    ],
)
def test_sums_are_exact(tmp_path: Path, mcpu: str, n_outputs: int, names: tuple[str, ...]) -> None:
    """A library computes the sums bit by bit, also for bytes at the ends of their ranges."""
    target = described(mcpu)
    if target.problem:
        pytest.skip(target.problem)
    cases = {name: _CASES[name] for name in names}
    proto = _model(**cases)
    variant, made = Winograd(n_outputs, is_integer=True), make_target(target.spec)
    chosen = {}
    for subgraph in _convolutions(proto, target.spec):
        program = variant.rewrite(subgraph.module)
        assert program is not None
        schedule = variant.schedule(program, made, variant.choices(program, made)[0])
        chosen[subgraph.workload] = traces.dump(schedule.trace, variant.name)

    library = build_proto(proto, target, tmp_path, chosen)

    feeds = {f"{name}_x": case.data.astype(np.uint8) for name, case in cases.items()}
    outputs = library(feeds).values()
    for case, sums in zip(cases.values(), outputs, strict=True):
        np.testing.assert_array_equal(sums, case.sums().astype(np.float32))


_DRAWN = _drawn(32, 128, 3, 3)


@pytest.mark.parametrize(
    ("mcpu", "weight", "fitting"),
    [
        ("haswell", _DRAWN, ["integer-winograd-4x4", "integer-winograd-2x2"]),
        ("haswell", np.full_like(_DRAWN, 127), ["integer-winograd-2x2"]),
        ("haswell", _drawn(32, 128, 5, 5), []),
        ("alderlake", _DRAWN, []),
        ("icelake-server", _DRAWN, []),
    ],
)
def test_weights_and_instruction_tell_which_fit(
    mcpu: str, weight: Array, fitting: list[str]
) -> None:
    """Tiles of 4 by 4 need sums of few bits; VNNI multiplies faster than it transforms."""
    proto = _model(c=Case(np.zeros((1, 128, 12, 12)), weight))

    (subgraph,) = _convolutions(proto, described(mcpu).spec)

    assert [each.name for each in catalogue.fitting(subgraph.module)] == fitting


@pytest.mark.parametrize(("size", "channels", "chosen"), [(28, 128, "4x4"), (7, 512, "2x2")])
def test_without_a_record_the_estimate_chooses(size: int, channels: int, chosen: str) -> None:
    """Large tiles have more weights, which come from memory."""
    weight = _drawn(channels, channels, 3, 3, low=-40, high=40)
    case = Case(np.zeros((1, channels, size, size)), weight)
    spec = described("znver3").spec

    (subgraph,) = _convolutions(_model(c=case), spec)

    trace = ranking.compute_variant(subgraph.module, make_target(spec))
    assert variant_of(trace) == f"integer-winograd-{chosen}"
