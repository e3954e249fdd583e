"""Computed schedules change no output, and use the vectors and the cores."""

import json
import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir.schedule import Trace

from tests.tuner.engines.relax.conftest import CPUS, Array, described
from tests.tuner.engines.relax.networks import UNOPTIMISED, relax_module
from tuner.engines.base import ObjectRequest, TargetInfo
from tuner.engines.relax.codegen.build import n_outputs, split_packing
from tuner.engines.relax.codegen.cpu import cpu_codegen
from tuner.engines.relax.codegen.objects import OBJECT, compile_subgraph
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.schedules.cpu import direct
from tuner.engines.relax.schedules.cpu.primitives import register_tiles
from tuner.engines.relax.schedules.cpu.primitives.operands import Operand, operands_of
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import Registers
from tuner.engines.relax.target.targets import make_target
from tuner.errors import WorkError

_OPS = relax.op


def _conv(x: relax.Expr, w: relax.Expr, groups: int = 1, strides: int = 1) -> relax.Expr:
    conv = _OPS.nn.conv2d(
        x, w, strides, (1, 1, 1, 1), groups=groups, data_layout="NHWC", kernel_layout="OHWI"
    )
    return _OPS.nn.relu(conv)


def _windows(x: relax.Expr) -> relax.Expr:
    """Shift an image by two slices along each of two axes, as shifted windows do."""
    x = _OPS.reshape(
        _OPS.permute_dims(_OPS.reshape(x, (4, 4, 7, 7, 24)), [0, 2, 1, 3, 4]), (28, 28, 24)
    )
    for axis in (0, 1):
        halves = (
            _OPS.strided_slice(x, [axis], [25], [28]),
            _OPS.strided_slice(x, [axis], [0], [25]),
        )
        x = _OPS.concat(halves, axis)
    return x


def _shuffled_halves(x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """Shuffle the channels of two tensors and split them, as two outputs."""
    joined = _OPS.reshape(_OPS.concat((x, y), 3), (1, 14, 14, 2, 29))
    shuffled = _OPS.reshape(_OPS.permute_dims(joined, [0, 1, 2, 4, 3]), (1, 14, 14, 58))
    return _OPS.split(shuffled, 2, 3)


def _rotated(x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """Multiply heads with their halves exchanged, as a rotary embedding does."""
    first, second = (_OPS.strided_slice(x, [3], [at], [at + 16]) for at in (0, 16))
    return _OPS.multiply(_OPS.concat((_OPS.negative(second), first), 3), y)


def _patches(x: relax.Expr, token: relax.Expr, y: relax.Expr) -> relax.Expr:
    """Add to all tokens but the first; the rows that one reads lie as far apart as its number."""
    tokens = _OPS.nn.relu(_OPS.concat((token, _OPS.reshape(x, (1, 12, 8))), 1))
    first = _OPS.strided_slice(tokens, [1], [0], [1])
    others = _OPS.reshape(_OPS.strided_slice(tokens, [1], [1], [13]), (12, 8))
    return _OPS.concat((first, _OPS.reshape(_OPS.add(others, y), (1, 12, 8))), 1)


# Name: function of the inputs, and their shapes; odd sizes on purpose.
CASES: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "conv": (_conv, [(1, 14, 14, 32), (48, 3, 3, 32)]),
    "conv of 40 channels": (_conv, [(1, 9, 9, 24), (40, 3, 3, 24)]),
    "strided conv of 7 channels": (
        lambda x, w: _conv(x, w, strides=2),
        [(2, 11, 13, 5), (7, 3, 3, 5)],
    ),
    "strided conv of 19 columns": (
        lambda x, w: _conv(x, w, strides=2),
        [(2, 7, 37, 24), (40, 3, 3, 24)],
    ),
    "depthwise": (lambda x, w: _conv(x, w, groups=72), [(1, 14, 14, 72), (72, 3, 3, 1)]),
    "grouped": (lambda x, w: _conv(x, w, groups=4), [(1, 7, 7, 64), (64, 3, 3, 16)]),
    "grouped by 4": (lambda x, w: _conv(x, w, groups=28), [(1, 7, 9, 112), (112, 3, 3, 4)]),
    "grouped by 8": (lambda x, w: _conv(x, w, 5, 2), [(2, 9, 12, 40), (40, 3, 3, 8)]),
    "two columns a channel": (
        lambda x, w: _conv(x, w, 32, 2),
        [(1, 12, 12, 32), (64, 5, 5, 1)],
    ),
    "depthwise of 19 columns": (
        lambda x, w: _conv(x, w, groups=40),
        [(1, 5, 19, 40), (40, 3, 3, 1)],
    ),
    "depthwise of a row": (
        lambda x, w: _OPS.nn.conv1d(
            x, w, padding=1, groups=24, data_layout="NWC", kernel_layout="OWI"
        ),
        [(1, 30, 24), (24, 3, 1)],
    ),
    "grouped by 17": (lambda x, w: _conv(x, w, groups=4), [(1, 6, 6, 68), (68, 3, 3, 17)]),
    "conv of one channel": (_conv, [(1, 12, 10, 32), (1, 3, 3, 32)]),
    "conv of 400 channels": (
        lambda x, w: _OPS.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI"),
        [(1, 7, 7, 400), (400, 1, 1, 400)],
    ),
    "conv of 112 channels": (_conv, [(1, 1, 5, 64), (112, 3, 3, 64)]),
    "conv of 197 rows": (
        lambda x, w, b: _OPS.nn.relu(
            _OPS.add(_OPS.nn.conv1d(x, w, data_layout="NWC", kernel_layout="OWI"), b)
        ),
        [(1, 197, 96), (160, 1, 96), (160,)],
    ),
    "product": (_OPS.matmul, [(128, 96), (96, 160)]),
    "product of one column": (
        lambda x, w, b: _OPS.nn.relu(_OPS.add(_OPS.matmul(x, w), b)),
        [(61, 192), (192, 1), (1,)],
    ),
    "products of one column": (_OPS.matmul, [(5, 30, 64), (5, 64, 1)]),
    "product of 197 tokens": (_OPS.matmul, [(3, 197, 64), (3, 64, 197)]),
    "product of 197 rows and more": (
        lambda x, w, b: _OPS.nn.gelu(_OPS.add(_OPS.matmul(x, w), b)),
        [(197, 96), (96, 160), (160,)],
    ),
    "products of 197 rows": (_OPS.matmul, [(2, 3, 197, 65), (2, 3, 65, 64)]),
    "products of 49 columns": (
        lambda x, y, b: _OPS.add(_OPS.matmul(x, y), b),
        [(8, 3, 49, 32), (8, 3, 32, 49), (1, 3, 49, 49)],
    ),
    "product of few rows": (_OPS.matmul, [(49, 768), (768, 1536)]),
    "product of one row": (_OPS.matmul, [(1, 512), (512, 1000)]),
    "parts of channels": (
        lambda x, y, z: _OPS.nn.relu(_OPS.concat((x, _OPS.nn.gelu(y), z), 3)),
        [(1, 9, 9, 24), (1, 9, 9, 40), (1, 9, 9, 3)],
    ),
    "heads of a product": (
        lambda x: _OPS.permute_dims(_OPS.multiply(x, relax.const(0.5)), [1, 0, 2]),
        [(49, 12, 32)],
    ),
    "rotated heads": (_rotated, [(1, 7, 4, 32), (1, 7, 1, 32)]),
    "long rows of a function": (_OPS.nn.silu, [(40, 96)]),
    "long rows": (_OPS.nn.relu, [(40, 96)]),
    "softmax": (lambda x: _OPS.nn.softmax(x, -1), [(3, 50, 197)]),
    "softmax over channels": (lambda x: _OPS.nn.softmax(x, 1), [(2, 19, 8, 8)]),
    "layer norm": (
        lambda x, g, b: _OPS.nn.layer_norm(x, g, b, axes=[-1]),
        [(1, 50, 192), (192,), (192,)],
    ),
    "maximum pooling": (
        lambda x: _OPS.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1), layout="NHWC"),
        [(1, 31, 31, 24)],
    ),
    "average pooling": (
        lambda x: _OPS.nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1, 1, 1), layout="NHWC"),
        [(1, 17, 17, 7)],
    ),
    "squares of pixels": (
        lambda x: _OPS.sum(_OPS.multiply(x, x), [1, 2]),
        [(1, 28, 28, 32)],
    ),
    "squares of channels": (lambda x: _OPS.sum(_OPS.multiply(x, x), [3]), [(1, 28, 28, 32)]),
    "mean of pixels": (lambda x: _OPS.mean(x, [1, 2], keepdims=True), [(1, 56, 56, 96)]),
    "mean of everything": (_OPS.mean, [(4, 33)]),
    "largest of everything": (_OPS.max, [(20, 82)]),
    "smallest of everything": (_OPS.min, [(3, 5)]),
    "sum of columns": (lambda x: _OPS.sum(x, [0]), [(33, 1001)]),
    "silu": (_OPS.nn.silu, [(1, 28, 28, 40)]),
    "transpose": (lambda x: _OPS.permute_dims(x, [0, 3, 1, 2]), [(1, 30, 30, 17)]),
    "shifted windows": (_windows, [(784, 24)]),
    "two outputs": (_shuffled_halves, [(1, 14, 14, 29), (1, 14, 14, 29)]),
    "tokens behind another": (_patches, [(12, 8), (1, 1, 8), (12, 8)]),
    "scalar": (_OPS.exp, [()]),
}


def workload(name: str) -> tvm.IRModule:
    """Return a fused subgraph of one of the cases."""
    make, shapes = CASES[name]
    module = relax_module(lambda emit, *inputs: emit(make(*inputs)), *shapes)
    steps = relax.transform
    passes = [steps.LegalizeOps(), steps.AnnotateTIROpPattern(), steps.FuseOps(), steps.FuseTIR()]
    module = tvm.transform.Sequential(passes)(module)
    (function,) = (f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    return workloads.as_workload(function)


@cache
def expected_of(name: str) -> Array:
    """Return the output of a case without a schedule, and without optimisations of LLVM."""
    return _call(workload(name), UNOPTIMISED)


def call(module: tvm.IRModule, target: TargetInfo) -> Array:
    """Compile a scheduled workload without optimisations of LLVM; run it on seeded inputs."""
    return _call(module, tvm.target.Target({**json.loads(target.spec), "opt-level": 0}))


def _call(module: tvm.IRModule, made: tvm.target.Target) -> Array:
    functions, packed = split_packing(module["main"])
    assert not packed
    kernel = cpu_codegen.compile_kernels(tvm.IRModule(functions), made)
    rng = np.random.default_rng(0)
    params = list(module["main"].params)
    n_inputs = len(params) - n_outputs(module["main"])
    shapes = [[int(n) for n in param.shape] for param in params]
    arrays = [rng.uniform(-1, 1, shape).astype("float32") for shape in shapes[:n_inputs]]
    results = [tvm.runtime.tensor(np.full(s, np.nan, "float32")) for s in shapes[n_inputs:]]
    kernel["kernel"](*map(tvm.runtime.tensor, arrays), *results)
    return np.concatenate([result.numpy().reshape(-1) for result in results])


def ranked_traces(
    module: tvm.IRModule, made: tvm.target.Target, *, is_closed: bool = False
) -> Iterator[Trace]:
    """Yield the schedules by rule of a workload."""
    workload = ranking.describe(module, made)
    return (trace for _, trace in ranking.ranked(workload, is_closed=is_closed))


def by_rule(module: tvm.IRModule, target: TargetInfo) -> tvm.IRModule:
    """Schedule a workload as a subgraph without a record is."""
    made = make_target(target.spec)
    return traces.schedule_module(module, ranking.compute_trace(module, made), made)


# Their schedules by rule are compared in tests of tiles, verified below, or those of others.
_ELSEWHERE = {
    *("strided conv of 7 channels", "depthwise of 19 columns", "conv of 197 rows"),
    *("products of 197 rows", "product of few rows", "long rows", "silu", "squares of pixels"),
    *("smallest of everything", "average pooling"),
    *("conv", "conv of 40 channels", "strided conv of 19 columns", "conv of 400 channels"),
    *("product", "product of 197 rows and more", "depthwise", "depthwise of a row"),
    *("grouped", "grouped by 4", "grouped by 8", "grouped by 17", "two columns a channel"),
    *("products of 49 columns", "two outputs", "shifted windows", "conv of one channel"),
    "mean of pixels",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow("compared elsewhere")] * (name in _ELSEWHERE))
        for name in CASES
    ],
)
def test_a_computed_schedule_changes_no_output(name: str, target: TargetInfo) -> None:
    """The scheduled kernel computes what the unscheduled one does; every reduction has a rule."""
    module, made = workload(name), make_target(target.spec)
    trace = ranking.compute_trace(module, made)
    scheduled = traces.schedule_module(module, trace, made)

    assert trace.startswith("[") or name in ("scalar", "transpose")
    np.testing.assert_allclose(call(scheduled, target), expected_of(name), rtol=2e-4, atol=2e-5)


# Operands of a convolution: its input, and its weights.
_CONV_OPERANDS = [Operand(frozenset({0, 1, 2}), 0, 2**16), Operand(frozenset({3}), 0, 2**16)]


@pytest.mark.parametrize(
    "spec",
    [
        '{"kind":"llvm","mcpu":"skylake-avx512","num-cores":8}',
        '{"kind":"llvm","mcpu":"haswell","num-cores":8}',
        '{"kind":"llvm","mtriple":"aarch64-linux-gnu","mcpu":"cortex-a72","num-cores":4}',
    ],
)
def test_a_tile_fits_the_registers_of_its_target(spec: str) -> None:
    """The sums of a tile fill most of the vector registers, and exceed them on no target."""
    registers = register_tiles.registers_of(make_target(spec))

    *rows, last = register_tiles.register_tile([1, 56, 56, 64], _CONV_OPERANDS, registers)

    n_sums = int(np.prod(rows)) * last // registers.lanes
    assert registers.n // 3 <= n_sums <= registers.n - 4
    assert last % registers.lanes == 0


@pytest.mark.parametrize(
    ("extents", "weight_bytes", "tile"),
    [
        # Four vectors of weights from the second cache for four rows take longer than the products.
        ([1, 64, 64, 64], 9 * 64 * 64 * 4, [1, 1, 8, 32]),
        # One vector has as many loads as products; eight rows of three leave no register.
        ([1, 28, 28, 96], 9 * 96 * 96 * 4, [1, 1, 7, 48]),
        # No divisor of 13 fills the registers together with several vectors.
        ([1, 13, 13, 192], 9 * 192 * 192 * 4, [1, 1, 13, 16]),
    ],
)
def test_a_tile_needs_no_more_loads_than_a_core_sustains(
    extents: list[int], weight_bytes: int, tile: list[int]
) -> None:
    """The tiles that were the fastest of those measured with AVX-512."""
    operands = [Operand(frozenset({0, 1, 2}), 0, 2**20), Operand(frozenset({3}), 0, weight_bytes)]

    assert register_tiles.register_tile(extents, operands, Registers(32, 16)) == tile


def test_a_tile_lies_in_one_group_of_a_convolution() -> None:
    """Elements of two groups multiply different inputs, which a vector would have to gather."""
    operands = operands_of(workload("grouped"))

    *_, width = register_tiles.register_tile([1, 7, 7, 64], operands, Registers(32, 16))

    assert {operand.group for operand in operands} == {0, 16}
    assert width == 16


@pytest.mark.parametrize("registers", [Registers(32, 16), Registers(16, 8), Registers(32, 4)])
@pytest.mark.parametrize("columns", [48, 64, 96, 144, 208])
def test_the_operands_of_a_step_fit_the_registers_with_the_sums(
    columns: int, registers: Registers
) -> None:
    """LLVM would keep some sums in memory, which doubles the time."""
    for tile in register_tiles.register_tiles([1, 56, 56, columns], _CONV_OPERANDS, registers):
        n_rows, n_vectors = int(np.prod(tile[:-1])), -(-tile[-1] // registers.lanes)
        # Vectors of one row, and numbers of one vector, are read with each product.
        n_operands = n_rows + n_vectors if min(n_rows, n_vectors) > 1 else 1
        assert n_rows * n_vectors + n_operands <= registers.n


def test_groups_of_34_channels_are_multiplied_in_vectors() -> None:
    """Two whole ones and a short one take far less than 34 single numbers."""
    operands = [Operand(frozenset({0, 1, 2}), 34, 2**16), Operand(frozenset({3}), 0, 2**14)]

    *_, width = register_tiles.register_tile([1, 28, 28, 136], operands, Registers(32, 16))

    assert width == 34


def test_rows_of_a_tile_share_the_vectors_that_they_load() -> None:
    """Rows of different matrices would load vectors of their own."""
    left, right = Operand(frozenset({0, 1}), 0, 2**16), Operand(frozenset({0, 2}), 0, 2**16)

    n_matrices, n_rows, _ = register_tiles.register_tile(
        [12, 12, 64], [left, right], Registers(32, 16)
    )

    assert n_matrices == 1
    assert n_rows >= 4


def test_a_few_rows_read_large_weights_once(target: TargetInfo) -> None:
    """The tiles of a column follow each other, so that the weights of a column are read once."""
    trace = ranking.compute_trace(workload("product of few rows"), make_target(target.spec))
    scheduled = traces.replay(workload("product of few rows"), trace)
    (product, *_) = scheduled.get_child_blocks(scheduled.get_sblock("root"))

    extents = [int(scheduled.get(loop).extent) for loop in scheduled.get_loops(product)]

    n_jobs, _, n_rows, *_ = extents
    assert n_jobs > 1
    assert n_rows > 1
    assert "T.parallel" in by_rule(workload("product of few rows"), target).script()


@pytest.mark.parametrize(
    ("name", "is_padded"),
    [
        ("product of 197 tokens", True),
        ("product of 197 rows and more", False),
        ("products of 49 columns", True),
        ("product", False),
        ("product of one row", False),
        ("conv of 40 channels", False),
    ],
)
def test_products_of_odd_shapes_are_padded(name: str, is_padded: bool, target: TargetInfo) -> None:
    """Padding is chosen where the tiles that divide a product waste most of the vectors."""
    trace = ranking.compute_trace(workload(name), make_target(target.spec))

    assert ("PadEinsum" in trace) == is_padded


@pytest.mark.parametrize(
    "name",
    [
        "product of 197 rows and more",
        "products of 197 rows",
        "conv of 197 rows",
        "strided conv of 19 columns",
        "depthwise of 19 columns",
    ],
)
def test_odd_rows_end_with_a_smaller_tile(name: str, target: TargetInfo) -> None:
    """Results are not copied where only the rows are odd."""
    scheduled = by_rule(workload(name), target)

    assert "pragma_loop_partition_hint" in scheduled.script()
    assert "_pad" not in scheduled.script()


@pytest.mark.parametrize(
    ("name", "has_lanes"),
    [
        ("conv of one channel", True),
        ("product of one column", True),
        ("products of one column", True),
        ("conv", False),
        # Columns that each row reads again come from the last cache.
        ("conv of 400 channels", False),
        ("products of 49 columns", False),
        ("product", False),
    ],
)
def test_few_columns_have_vectors_along_the_reduction(
    name: str, has_lanes: bool, target: TargetInfo
) -> None:
    """Partial sums side by side fill the vectors that one column leaves empty."""
    trace = ranking.compute_trace(workload(name), make_target(target.spec))

    assert ("RFactor" in trace) == has_lanes


@pytest.mark.parametrize("name", ["depthwise", "product of one column"])
def test_schedules_by_rule_are_ranked(name: str, target: TargetInfo) -> None:
    """The rule comes first, the next ones differ, and none changes an output."""
    module, made = workload(name), make_target(target.spec)

    first = islice(ranked_traces(module, made), 12)
    ranked = list(dict.fromkeys(traces.dump(trace) for trace in first))

    assert ranked[0] == ranking.compute_trace(module, made)
    assert len(ranked) >= 4
    expected = expected_of(name)
    for trace in ranked[1:4]:
        scheduled = traces.schedule_module(module, trace, made)
        np.testing.assert_allclose(call(scheduled, target), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("mcpu", CPUS)
def test_a_tile_of_seven_vectors_is_a_loop_of_whole_ones(mcpu: str) -> None:
    """LLVM would split a vector of 112 numbers into single ones."""
    target = described(mcpu)
    functions, _ = split_packing(by_rule(workload("conv of 112 channels"), target)["main"])

    extents = re.findall(r"T.vectorized\(T.int64\((\d+)\)\)", functions["kernel"].script())
    assert {int(extent) for extent in extents} <= {8, 16, 32, 64}
    assert extents


@pytest.mark.parametrize(
    "name",
    [
        "products of 49 columns",
        "two outputs",
        "shifted windows",
        "conv of one channel",
        "mean of pixels",
    ],
)
def test_a_kernel_by_rule_passes_verification(
    name: str, target: TargetInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The references of the subgraph accept the scheduled kernel, which a library then contains."""
    by_rule = compiled(workload(name), target, tmp_path / "by_rule")

    assert by_rule != unscheduled(workload(name), target, tmp_path / "unscheduled", monkeypatch)


def test_each_part_of_a_concatenation_has_a_loop(target: TargetInfo) -> None:
    """LLVM makes no vectors of a loop with several conditions."""
    script = by_rule(workload("parts of channels"), target).script()

    ends = re.findall(r"(?:range|vectorized)\((?:T.int64\(\d+\), )?T.int64\((\d+)\)\)", script)
    assert {24, 64, 67} <= {int(end) for end in ends}


@pytest.mark.parametrize(
    ("name", "vectors"),
    [
        ("heads of a product", ["32"]),
        ("rotated heads", ["16", "32"]),
        ("long rows of a function", ["48"]),
        ("long rows", []),
        # LLVM would compare one element after the other.
        ("largest of everything", ["8", "8"]),
    ],
)
def test_short_rows_and_functions_are_vectors(
    name: str, vectors: list[str], target: TargetInfo
) -> None:
    """LLVM gathers numbers of several rows instead, and halves vectors of functions."""
    script = by_rule(workload(name), target).script()

    assert re.findall(r"T.vectorized\((?:T.int64\(\d+\), )?T.int64\((\d+)\)\)", script) == vectors


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        ("maximum pooling", False),
        ("squares of pixels", False),
        ("average pooling", True),
        ("squares of channels", True),
        # A slice that two others read is inlined in both.
        ("shifted windows", False),
    ],
)
def test_vectors_of_channels_are_reduced_as_they_are_computed(
    name: str, is_kept: bool, target: TargetInfo
) -> None:
    """Borders and elementwise operators need tensors only where channels are few or reduced."""
    script = by_rule(workload(name), target).script()

    assert ("sblock_alloc_buffer" in script) == is_kept


def test_small_kernels_stay_on_one_core(target: TargetInfo) -> None:
    """Starting a second core would take longer than the kernel."""
    small = by_rule(workload("mean of everything"), target)
    large = by_rule(workload("mean of pixels"), target)

    assert "T.parallel" not in small.script()
    assert "T.parallel" in large.script()


def test_a_wrong_kernel_by_rule_is_not_used(
    target: TargetInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that disagrees with its definition is replaced by the unscheduled one."""
    module = workload("layer norm")
    right = compiled(module, target, tmp_path / "right")
    schedule_right = traces.schedule_module

    def schedule_wrong(module: tvm.IRModule, trace: str, target: tvm.target.Target) -> Any:
        """Schedule a kernel that takes the larger of two factors instead of their product."""
        described = tvm.ir.save_json(module).replace('"prim.Mul"', '"prim.Max"')
        return schedule_right(tvm.ir.load_json(described), trace, target)

    monkeypatch.setattr(traces, "schedule_module", schedule_wrong)

    used = compiled(module, target, tmp_path / "wrong")

    assert used == unscheduled(module, target, tmp_path / "unscheduled", monkeypatch)
    assert used != right


def test_a_schedule_that_cannot_be_compiled_is_not_used(
    target: TargetInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A post-processor that rejects a schedule by rule leaves the kernel as it is defined."""
    module = workload("silu")

    def reject(*_: object) -> None:
        raise WorkError("DisallowDynamicLoop rejected the schedule")

    monkeypatch.setattr(traces, "schedule_module", reject)

    used = compiled(module, target, tmp_path / "rejected")

    assert used == unscheduled(module, target, tmp_path / "unscheduled", monkeypatch)


def compiled(module: tvm.IRModule, target: TargetInfo, out: Path) -> bytes:
    """Return the object of a subgraph without a record."""
    out.mkdir()
    compile_subgraph(ObjectRequest(workloads.dump(module), target.spec, "", "kernel_0", str(out)))
    return (out / OBJECT).read_bytes()


def unscheduled(
    module: tvm.IRModule, target: TargetInfo, out: Path, monkeypatch: pytest.MonkeyPatch
) -> bytes:
    """Return the object of a subgraph that no rule fits."""
    monkeypatch.setattr(ranking, "compute_trace", lambda *_: "")
    return compiled(module, target, out)


def test_a_rule_that_fails_leaves_the_others(
    target: TargetInfo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is in the log; schedules of the other rules follow."""

    def fail(*_: object, **_options: object) -> None:
        raise KeyError("columns")

    module, made = workload("product"), make_target(target.spec)
    expected = {str(trace) for trace in ranked_traces(module, made)}
    monkeypatch.setattr(direct, "direct_tiles", fail)

    others = {str(trace) for trace in ranked_traces(module, made)}

    assert others < expected
    assert len(others) > 1
    assert "KeyError: 'columns'" in caplog.text
    caplog.clear()
