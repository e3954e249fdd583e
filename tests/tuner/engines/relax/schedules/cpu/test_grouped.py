"""Tiles of depthwise and grouped convolutions: they fit the registers, and load numbers once."""

import math

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply

from tests.tuner.engines.relax.schedules.test_ranking import call, expected_of, workload
from tuner.engines.base import TargetInfo
from tuner.engines.relax.codegen.build import split_packing
from tuner.engines.relax.codegen.cpu import cpu_codegen
from tuner.engines.relax.ir import traces
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.schedules.cpu.grouped import (
    GroupedConvolution,
    find_grouped,
    grouped_tiles,
    schedule_grouped,
)
from tuner.engines.relax.schedules.cpu.primitives import blocks
from tuner.engines.relax.schedules.cpu.primitives.operands import operands_of
from tuner.engines.relax.schedules.cpu.primitives.products import REDUCTION, SPATIAL, tiles_of
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import Registers
from tuner.engines.relax.schedules.cpu.primitives.spread_loads import MARK, vector_sizes
from tuner.engines.relax.target.targets import make_target

_AVX512, _AVX2, _NEON = Registers(32, 16), Registers(16, 8), Registers(32, 4)
# Columns that no vector divides, groups of less and of more than a vector, two columns a channel.
_CONVOLUTIONS = [
    GroupedConvolution((1, 28, 28, 116), 3, 9, 1, 1),
    GroupedConvolution((1, 56, 56, 128), 3, 36, 4, 4),
    GroupedConvolution((1, 14, 14, 512), 3, 144, 16, 16),
    GroupedConvolution((1, 32, 32, 96), 7, 49, 1, 2),
]


@pytest.mark.parametrize("registers", [_AVX512, _AVX2, _NEON])
@pytest.mark.parametrize("convolution", _CONVOLUTIONS)
def test_the_sums_of_a_tile_fit_the_registers(
    convolution: GroupedConvolution, registers: Registers
) -> None:
    """LLVM would keep some in memory."""
    tiles = grouped_tiles(convolution, registers, 8, 2)

    assert tiles
    for tile in tiles:
        pixels, width = tile.inner[-2:]
        assert pixels * (len(vector_sizes(width, registers.lanes)) + 1) <= registers.n


@pytest.mark.parametrize("convolution", _CONVOLUTIONS)
def test_a_tile_divides_the_result_and_its_jobs_the_tiles(convolution: GroupedConvolution) -> None:
    """No iteration needs a condition, and no core waits for another."""
    for tile in grouped_tiles(convolution, _AVX512, 8, 2):
        for extent, jobs, size in zip(convolution.extents, tile.jobs, tile.inner, strict=True):
            assert extent % (jobs * size) == 0
        assert math.prod(tile.jobs) % 2 == 0


@pytest.mark.parametrize(("n_out", "is_spread"), [(8, True), (20, False), (24, False)])
def test_a_panel_is_part_of_a_group_or_whole_groups(n_out: int, is_spread: bool) -> None:
    """A vector that ends inside of a group would read the numbers of two."""
    convolution = GroupedConvolution((1, 8, 8, 240), 3, 9 * n_out, n_out, n_out)

    panels = {tile.inner[-1] for tile in grouped_tiles(convolution, _AVX512, 1, 1)}

    assert all(width % n_out == 0 or n_out % width == 0 for width in panels)
    assert any(map(convolution.is_spread, panels)) == is_spread


def _find(module: tvm.IRModule, target: tvm.target.Target) -> GroupedConvolution | None:
    space = traces.design_spaces(module, target, PostOrderApply())[0]
    extents = [[extent for _, extent in tiles_of(space, n)] for n in (SPATIAL, REDUCTION)]
    return find_grouped(extents[0], extents[1], operands_of(module))


@pytest.mark.parametrize("name", ["conv", "product", "products of 197 rows"])
def test_products_without_groups_are_none(name: str, target: TargetInfo) -> None:
    """Their columns share all numbers."""
    assert _find(workload(name), make_target(target.spec)) is None


@pytest.mark.parametrize(
    ("name", "registers"),
    [
        *((name, _AVX512) for name in ("depthwise", "grouped by 4", "grouped by 17")),
        *(
            pytest.param(name, registers, marks=pytest.mark.slow("more of the same tiles"))
            for name in ("grouped", "grouped by 8", "two columns a channel", "depthwise of a row")
            for registers in (_AVX512, _AVX2)
        ),
    ],
)
def test_no_tile_changes_an_output(name: str, registers: Registers, target: TargetInfo) -> None:
    """Padding is read in place, and the lanes of a vector read the numbers of their groups."""
    module, made = workload(name), make_target(target.spec)
    convolution = _find(module, made)
    assert convolution is not None
    tiles = grouped_tiles(convolution, registers, 4, 2)
    expected = expected_of(name)

    for tile in (tiles[0], tiles[-1]):
        schedule = Schedule(module)
        schedule_grouped(schedule, tile, convolution)
        scheduled = traces.schedule_module(module, traces.dump(schedule.trace), made)
        np.testing.assert_allclose(call(scheduled, target), expected, rtol=2e-4, atol=2e-5)


def _product(schedule: Schedule) -> str:
    """Return the name of the reduction of a workload."""
    (name,) = (
        blocks.name_of(schedule, block)
        for block in schedule.get_child_blocks(schedule.get_sblock("root"))
        if blocks.is_reduction(schedule, block)
    )
    return name.removesuffix("_update")


def _code(module: tvm.IRModule, target: TargetInfo) -> str:
    functions, _ = split_packing(module["main"])
    built = cpu_codegen.compile_kernels(tvm.IRModule(functions), make_target(target.spec))
    return str(built.inspect_source("ll"))


def test_lanes_of_several_groups_are_shuffled(target: TargetInfo) -> None:
    """One load and a shuffle take the place of a load for each lane."""
    module, made = workload("two columns a channel"), make_target(target.spec)
    convolution = _find(module, made)
    assert convolution is not None
    tiles = grouped_tiles(convolution, _AVX512, 4, 2)
    tile = next(each for each in tiles if convolution.is_spread(each.inner[-1]))
    schedule = Schedule(module)
    schedule_grouped(schedule, tile, convolution)

    shuffled = _code(schedule.mod, target)

    schedule.unannotate(schedule.get_sblock(f"{_product(schedule)}_update"), MARK)
    assert _code(schedule.mod, target).count("insertelement") > shuffled.count("insertelement") + 99


def test_a_mark_of_other_groups_changes_no_output(target: TargetInfo) -> None:
    """Lanes that are not in the groups of the mark are loaded one by one."""
    module = workload("grouped by 17")
    schedule = Schedule(module)
    block = schedule.get_sblock(_product(schedule))
    schedule.annotate(block, MARK, [17, 17])
    *_, columns, _, _, channels = schedule.get_loops(block)
    schedule.reorder(channels, columns)
    schedule.vectorize(columns)
    schedule.unroll(channels)

    np.testing.assert_allclose(
        call(schedule.mod, target), expected_of("grouped by 17"), rtol=2e-4, atol=2e-5
    )


@pytest.mark.parametrize("name", ["depthwise", "grouped by 4", "two columns a channel"])
def test_a_library_without_records_has_the_first_tile(name: str, target: TargetInfo) -> None:
    """The schedule has no decisions of TVM's space."""
    made = make_target(target.spec)

    assert "SamplePerfectTile" not in ranking.compute_trace(workload(name), made)
