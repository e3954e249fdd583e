"""Register tiles of products and convolutions: they fit the registers, and share the vectors."""

import math

import numpy as np
import pytest
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tests.tuner.engines.relax.schedules.test_ranking import call, workload
from tuner.engines.base import TargetInfo
from tuner.engines.relax.ir import traces
from tuner.engines.relax.schedules.cpu.direct import direct_tiles, schedule_direct
from tuner.engines.relax.schedules.cpu.primitives.operands import Operand, operands_of
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import Registers
from tuner.engines.relax.schedules.cpu.primitives.spread_loads import vector_sizes
from tuner.engines.relax.target.targets import make_target

_AVX512, _AVX2, _NEON = Registers(32, 16), Registers(16, 8), Registers(32, 4)


def _operands(weight_bytes: int = 2**16) -> list[Operand]:
    return [Operand(frozenset({0, 1, 2}), 0, 2**18), Operand(frozenset({3}), 0, weight_bytes)]


@pytest.mark.parametrize("registers", [_AVX512, _AVX2, _NEON])
@pytest.mark.parametrize("columns", [24, 48, 80, 96, 232])
def test_the_sums_and_operands_of_a_tile_fit_the_registers(
    columns: int, registers: Registers
) -> None:
    """LLVM would keep some sums in memory, which doubles the time."""
    tiles = direct_tiles([1, 56, 56, columns], _operands(), registers, 8)

    assert tiles
    for tile in tiles:
        n_rows = math.prod(tile.inner[:-1])
        n_vectors = len(vector_sizes(tile.inner[-1], registers.lanes))
        n_numbers = n_rows if n_vectors > 1 else 1
        assert n_rows * n_vectors + n_vectors + n_numbers <= registers.n


def test_a_tile_divides_the_result_and_its_jobs_the_tiles() -> None:
    """No iteration needs a condition."""
    extents = [1, 14, 14, 240]

    for tile in direct_tiles(extents, _operands(), _AVX512, 8):
        for extent, jobs, size in zip(extents, tile.jobs, tile.inner, strict=True):
            assert extent % (jobs * size) == 0


@pytest.mark.parametrize("extent", [19, 37, 74])
def test_rows_that_no_tile_divides_end_with_a_smaller_one(extent: int) -> None:
    """The tiles of a row belong to one job; those that divide it would be slower."""
    (tile, *_) = direct_tiles([1, extent, extent, 128], _operands(), _AVX512, 8, has_window=True)

    assert extent % tile.inner[2]
    assert tile.jobs[2] == 1
    assert tile.inner[1] == 1


def test_wide_panels_need_fewer_loads_while_they_stay_close() -> None:
    """Four vectors by four rows load 8 operands for 16 products, two by seven 9 for 14."""
    (wide, *_) = direct_tiles([1, 28, 28, 128], _operands(2**18), _AVX512, 8, has_window=True)
    (narrow, *_) = direct_tiles([1, 28, 28, 128], _operands(2**20), _AVX512, 8, has_window=True)

    assert wide.inner == (1, 1, 4, 64)
    assert narrow.inner == (1, 1, 7, 32)


@pytest.mark.parametrize(("has_window", "rows"), [(True, (1, 7)), (False, (2, 2))])
def test_windows_slide_over_parts_of_one_row(has_window: bool, rows: tuple[int, int]) -> None:
    """Blocks of several rows test more of their reads for padding, if there is any."""
    (tile, *_) = direct_tiles([1, 14, 14, 128], _operands(), _AVX512, 8, has_window=has_window)

    assert tile.inner[1:3] == rows


@pytest.mark.parametrize("n_jobs", [8, 64])
def test_uneven_tiles_keep_the_cores_busy(n_jobs: int) -> None:
    """Jobs share the columns of a single row; for many cores, tiles divide the row."""
    (tile, *_) = direct_tiles([1, 1, 74, 64], _operands(), _AVX512, n_jobs)

    assert math.prod(tile.jobs) >= n_jobs // 4


def test_one_row_has_no_tile() -> None:
    """The sums of one row of 32 numbers would wait for each other."""
    assert direct_tiles([1, 32], [Operand(frozenset({1}), 0, 2**16)], _AVX512, 8) == []


def test_large_weights_are_shared_out_by_columns() -> None:
    """Jobs by rows would read all of them."""
    small, large = (
        direct_tiles([1, 14, 14, 512], _operands(n_bytes), _AVX512, 8)[0].jobs
        for n_bytes in (2**16, 2**22)
    )

    assert small[-1] == 1
    assert math.prod(large) == large[-1] >= 8


@pytest.mark.parametrize(
    "name",
    ["conv of 40 channels", "strided conv of 19 columns", "product of 197 rows and more"],
)
def test_no_tile_changes_an_output(name: str, target: TargetInfo) -> None:
    """Odd columns end with shorter vectors, odd rows with a smaller tile."""
    module, made = workload(name), make_target(target.spec)
    schedule = Schedule(module)
    extents = [int(schedule.get(loop).extent) for loop in _spatial(schedule)]
    tiles = direct_tiles(extents, operands_of(module), _AVX512, 4)
    expected = call(module, target)

    for tile in (tiles[0], tiles[-1]):
        schedule = Schedule(module)
        schedule_direct(schedule, tile)
        scheduled = traces.schedule_module(module, traces.dump(schedule.trace), made)
        np.testing.assert_allclose(call(scheduled, target), expected, rtol=2e-4, atol=2e-5)


def _spatial(schedule: Schedule) -> list[LoopRV]:
    """Return the loops of the result of a workload."""
    (last,) = schedule.get_output_blocks(schedule.get_sblock("root"))
    n_axes = sum(int(axis.iter_type) == 0 for axis in schedule.get(last).iter_vars)
    return list(schedule.get_loops(last)[:n_axes])
