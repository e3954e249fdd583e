"""Reductions along rows agree with their workloads, in Triton's interpreter."""

from collections.abc import Callable
from typing import Any

import pytest
from tvm import te, tirx, topi

from tests.gpu_compilers import needs_triton
from tests.tuner.engines.relax.triton.conftest import (
    ALL_KINDS,
    Verify,
    broken,
    match,
    product,
    workload,
)
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.triton import variants
from tuner.engines.relax.triton.compilation import compiler
from tuner.engines.relax.triton.expressions.printer import PrintError
from tuner.engines.relax.triton.programs import Program
from tuner.engines.relax.triton.templates.rows import Configuration, Rows, print_program, ranked

pytestmark = needs_triton

_SMALL, _SHARED = Configuration(2, 4), Configuration(1, 4, 3)


def program_of(ir: bytes, configuration: Configuration = _SMALL) -> Program:
    """Print the kernel of a workload that Triton has to match."""
    return print_program(match(Rows, ir), configuration)


def _data(*shape: int, dtype: str = "float16") -> Any:
    return te.placeholder(shape, dtype, name="data")


def _softmax(axis: int, n_rows: int = 3, width: int = 20) -> bytes:
    data = _data(1, width, n_rows) if axis == 1 else _data(1, n_rows, width)
    wide = topi.nn.softmax(topi.cast(data, "float32"), axis)
    return workload([data, topi.cast(wide, "float16")])


def _layer_norm() -> bytes:
    data, scale, shift = _data(3, 4, 5), _data(4, 5), _data(4, 5)
    return workload([data, scale, shift, topi.nn.layer_norm(data, scale, shift, [1, 2], 1e-5)])


def _rms_norm() -> bytes:
    data, scale = _data(3, 33, dtype="bfloat16"), _data(33, dtype="bfloat16")
    return workload([data, scale, topi.nn.rms_norm(data, scale, [1], 1e-5)])


def _mean_of_pixels() -> bytes:
    data = _data(2, 6, 6, 2)
    sums = topi.sum(topi.cast(data, "float32"), [1, 2])
    mean = te.compute(
        (2, 2), lambda *at: tirx.max(sums[at] / tirx.const(36.0, "float32"), tirx.const(0.0))
    )
    return workload([data, topi.cast(mean, "float16")])


_WORKLOADS: dict[str, Callable[[], bytes]] = {
    "softmax": lambda: _softmax(-1),
    "softmax of columns": lambda: _softmax(1),
    "layer norm": _layer_norm,
    "root mean square": _rms_norm,
    "mean of pixels": _mean_of_pixels,
    # Rows enough for NaN and infinities to be among their numbers.
    "minimum": lambda: workload([data := _data(9, 33, dtype="float32"), topi.min(data, 1)]),
    "maximum": lambda: workload([data := _data(9, 33), topi.max(data, 1)]),
    "minimum of integers": lambda: workload(
        [data := _data(3, 33, dtype="int32"), topi.min(data, 1)]
    ),
    "sum of integers": lambda: workload([data := _data(3, 33, dtype="int32"), topi.sum(data, 1)]),
}


@pytest.mark.parametrize("by", [_SMALL, _SHARED], ids=["whole", "shared"])
@pytest.mark.parametrize("name", _WORKLOADS)
def test_rows_are_reduced(name: str, by: Configuration, verify: Verify) -> None:
    """Rows end inside of a tile, along any axes, with several reductions, whole or in parts."""
    ir = _WORKLOADS[name]()

    assert verify(ir, program_of(ir, by), ALL_KINDS) == ""


@pytest.mark.parametrize(
    ("by", "number", "old", "new"),
    [
        (_SMALL, 0, "(n < 40), (x2", "(n < 39), (x2"),
        (_SMALL, 0, "tl.program_id(0) * 2", "tl.program_id(0) * 1"),
        (_SHARED, 1, "[None, :] < 3)", "[None, :] < 2)"),
        (_SHARED, 2, "(m + 5)", "(m + 4)"),
    ],
)
def test_broken_kernels_are_found(
    by: Configuration, number: int, old: str, new: str, verify: Verify
) -> None:
    """A template with an error fails its verification."""
    ir = _softmax(-1, 5, 40)

    assert verify(ir, broken(program_of(ir, by), old, new, number)) != ""


def test_blocks_share_long_rows(verify: Verify) -> None:
    """A norm of a long row has a kernel for each statistic, and one that applies both."""
    data, scale = _data(1, 20480), _data(20480)
    ir = workload([data, scale, topi.nn.layer_norm(data, scale, scale, [1], 1e-5)])
    matched = variants.ROWS.find(workloads.load(ir)["main"])

    for architecture in (80, 90):
        first = ranked(matched, architecture)[0]
        program = print_program(matched, first)
        assert Configuration.named(first.name) == first
        assert [kernel.n_blocks for kernel in program.kernels] == [first.n_splits] * 3
        for kernel in program.kernels:
            assert compiler.compile_kernel(kernel, f"sm_{architecture}").facts.stack_bytes == 0
    assert verify(ir, program) == ""


@pytest.mark.parametrize(
    "ir",
    [
        product((1, 16, 64, 64)),
        workload([data := _data(9, 33), topi.argmax(data, 1)]),
        workload([data := _data(9, 8), topi.sum(data, 1)]),
    ],
    ids=["product", "position", "short"],
)
def test_other_reductions_are_not_rows(ir: bytes) -> None:
    """Rows of a product share operands, positions are pairs, and short rows are windows."""
    assert Rows.find(workloads.load(ir)["main"]) is None


def test_reductions_of_rows_and_of_columns_are_not_one_kernel() -> None:
    """Both have as many elements of as many."""
    data = _data(64, 64)
    i, j = te.reduce_axis((0, 64), "i"), te.reduce_axis((0, 64), "j")
    rows = te.compute((64,), lambda a: te.max(data[a, j], j))
    columns = te.compute((64,), lambda b: te.max(data[i, b], i))
    both = te.compute(data.shape, lambda a, b: data[a, b] - rows[a] - columns[b])
    ir = workload([data, both])
    matched = match(Rows, ir)

    with pytest.raises(PrintError, match="same axes"):
        print_program(matched, _SMALL)

    assert variants.ROWS.find(workloads.load(ir)["main"]) is None


def test_rows_fill_the_gpu() -> None:
    """The first choice for a normalisation of BERT has a block for each row, and no spills."""
    data, scale = _data(128, 768), _data(768)
    ir = workload([data, scale, topi.nn.rms_norm(data, scale, [1], 1e-5)])
    matched = match(Rows, ir)

    first = ranked(matched, 90)[0]
    (kernel,) = print_program(matched, first).kernels

    assert Configuration.named(first.name) == first
    assert variants.ROWS.find(workloads.load(ir)["main"]) == matched
    assert kernel.n_blocks == 128
    assert compiler.compile_kernel(kernel, "sm_90").facts.stack_bytes == 0
