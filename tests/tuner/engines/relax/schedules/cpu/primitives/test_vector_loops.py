"""Kernels are made of vectors whose sizes are powers of two, and compute the same."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te
from tvm.s_tir import Schedule
from tvm.tirx import For, ForKind, PrimFunc

from tests.tuner.engines.relax.conftest import draw
from tuner.engines.base import TargetInfo
from tuner.engines.relax.codegen.cpu import cpu_codegen
from tuner.engines.relax.schedules.cpu.primitives.spread_loads import split_vectors, vector_sizes
from tuner.engines.relax.target.targets import make_target


@pytest.mark.parametrize(
    ("extent", "lanes", "sizes"),
    [
        (48, 16, [16, 16, 16]),
        (34, 16, [16, 16, 2]),
        (34, 8, [8, 8, 8, 8, 2]),
        (15, 16, [8, 4, 2, 1]),
        (4, 16, [4]),
    ],
)
def test_vectors_hold_all_numbers(extent: int, lanes: int, sizes: list[int]) -> None:
    """Whole registers come first, then the powers of two of the rest."""
    assert vector_sizes(extent, lanes) == sizes


def vectorised(n_columns: int) -> PrimFunc:
    """Return a kernel whose inner loop is a vector of all columns."""
    x = te.placeholder((5, n_columns), "float32", "x")
    y = te.compute((5, n_columns), lambda i, j: x[i, j] * 2.0 + i, "y")
    schedule = Schedule(te.create_prim_func([x, y]))
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("y"))[-1])
    return schedule.mod["main"]


@pytest.mark.parametrize("n_columns", [3, 12, 15, 34, 48, 64])
def test_split_vectors_compute_the_same(n_columns: int, target: TargetInfo) -> None:
    """Every number is computed once, at its place."""
    kernel = split_vectors(vectorised(n_columns)).with_attr("global_symbol", "kernel")
    built = cpu_codegen.compile_kernels(tvm.IRModule({"kernel": kernel}), make_target(target.spec))
    data = draw(5, n_columns)
    output = tvm.runtime.tensor(np.full((5, n_columns), np.nan, "float32"))

    built["kernel"](tvm.runtime.tensor(data), output)

    expected = data * 2 + np.arange(5, dtype="float32")[:, None]
    np.testing.assert_allclose(output.numpy(), expected, rtol=1e-6)


def test_no_vector_is_left_that_llvm_would_split() -> None:
    """Each vectorised loop has a power of two of iterations."""
    extents = []

    def visit(loop: For) -> None:
        if loop.kind == ForKind.VECTORIZED:
            extents.append(int(loop.extent))

    tvm_ffi.structural_walk(split_vectors(vectorised(34)).body, ((For, visit),))

    assert sorted(extents) == [2, 16, 16]


def test_whole_vectors_stay() -> None:
    """A kernel without other vectors is returned as it is."""
    function = vectorised(32)

    assert split_vectors(function).same_as(function)
