"""Schedules by rule for products and convolutions of few columns: vectors along the reduction.

One output channel fills no vector, but the products that are added to it do. Each element has a
vector of partial sums, a tile of such vectors stays in the registers, and the lanes are added in
the end.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV, Trace

from tuner.engines.relax.ir.packed_layouts import LAYOUT_FREE
from tuner.engines.relax.schedules.base import Workload, attempts
from tuner.engines.relax.schedules.cpu import direct, padded
from tuner.engines.relax.schedules.cpu.primitives.blocks import (
    REDUCTION,
    SPATIAL,
    axes_of,
    extents_of,
    name_of,
    only_reduction,
)
from tuner.engines.relax.schedules.cpu.primitives.products import Product
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import (
    LATENCY,
    LOADS_PER_CYCLE,
    PRODUCTS_PER_CYCLE,
    Registers,
    divisors,
)
from tuner.engines.relax.schedules.cpu.rows import parallelise

# Cycles in which the lanes of a vector are added, as measured.
_LANE_CYCLES = 16
_MIN_LANES, _MATRIX = 4, 2
# Largest cycles, over other tiles', for which vectors along the reduction are used: many columns
# read all weights again for each few rows.
_MAX_CYCLES = 0.5
# TVM keeps what is larger than this on the heap, where LLVM makes no registers of it.
_MAX_STACK_BYTES = 1023
_ELEMENT_BYTES = 4


@dataclass(frozen=True)
class LaneTile:
    """A tile of vectors of partial sums.

    Attributes:
        n_rows: Rows, of the last axis but the columns.
        n_vectors: Vectors of each sum.
        lanes: Elements of a vector.
    """

    n_rows: int
    n_columns: int
    n_vectors: int
    lanes: int

    @property
    def n_sums(self) -> int:
        """Vectors of the tile."""
        return self.n_rows * self.n_columns * self.n_vectors


@dataclass(frozen=True)
class LaneProduct:
    """A reduction along the last axis of what it reads.

    Attributes:
        extents: Extents of its result.
        n_terms: Products that are added to each element of it.
        n_inner: Extent of the reduced axis along which numbers lie side by side.
    """

    block: SBlockRV
    extents: list[int]
    n_terms: int
    n_inner: int


def ranked(workload: Workload, product: Product) -> Iterator[Trace]:
    """Rank schedules that are far faster than other rules'; see :class:`ScheduleRule`."""
    reduction = find_lane_product(Schedule(workload.module))
    if padded.pays(workload, product):
        limit = padded.fewest_cycles(product)
    else:
        n_cycles = product.n_terms * direct.cycles_per_term(workload, product)
        limit = min(product.cycles, n_cycles)
    tiles = lane_tiles(reduction, product.registers) if reduction else ()
    fast = itertools.takewhile(lambda each: each[1] <= _MAX_CYCLES * limit, tiles)
    n_jobs = workload.n_jobs
    return attempts(workload, schedule_lanes, (tile for tile, _ in fast), n_jobs=n_jobs)


def find_lane_product(schedule: Schedule) -> LaneProduct | None:
    """Return the only reduction of a workload if vectors can run along the reduced axis."""
    block = only_reduction(schedule)
    if block is None:
        return None
    statement = schedule.get(block)
    spatial, reduced = (axes_of(schedule, block, kind) for kind in (SPATIAL, REDUCTION))
    function = schedule.mod["main"]
    indices = (function.attrs or {}).get(LAYOUT_FREE, ())
    packed = [function.params[int(index)] for index in indices]
    written = statement.writes[0].source
    reads = [region for region in statement.reads if not region.source.same_as(written)]
    if len(spatial) < _MATRIX or len(reads) != _MATRIX:
        return None
    for region in reads:
        is_packed = any(region.source.same_as(buffer) for buffer in packed)
        if not is_packed and not _ends_with(region, reduced[-1].var):
            return None
    return LaneProduct(
        block,
        [int(axis.dom.extent) for axis in spatial],
        math.prod(int(axis.dom.extent) for axis in reduced),
        int(reduced[-1].dom.extent),
    )


def _ends_with(region: Any, variable: Any) -> bool:
    """Return whether a variable alone is the last index, ignoring axes of extent 1."""
    dims = list(zip(region.region, region.source.shape, strict=True))
    while dims and int(dims[-1][1]) == 1:
        dims.pop()
    return bool(dims) and variable.same_as(dims[-1][0].min)


def lane_tiles(product: LaneProduct, registers: Registers) -> list[tuple[LaneTile, float]]:
    """Return tiles with their cycles, the fewest first; none without enough lanes."""
    n_results, n_terms = math.prod(product.extents), product.n_terms
    tiles = []
    *_, n_rows, n_columns = product.extents
    for tile in _tiles(n_rows, n_columns, product.n_inner, registers):
        n_loads = tile.n_vectors * (tile.n_rows + tile.n_columns)
        step = max(tile.n_sums / PRODUCTS_PER_CYCLE, n_loads / LOADS_PER_CYCLE, LATENCY)
        n_steps = n_results / tile.n_rows / tile.n_columns * n_terms / tile.n_vectors / tile.lanes
        cycles = n_steps * step + n_results * (_LANE_CYCLES + tile.n_vectors)
        tiles.append((tile, cycles))
    return sorted(tiles, key=lambda each: each[1])


def _tiles(n_rows: int, n_columns: int, n_inner: int, registers: Registers) -> Iterator[LaneTile]:
    lanes = math.gcd(n_inner, registers.lanes)
    if lanes < _MIN_LANES:
        return
    limit = min(registers.n_sums, _MAX_STACK_BYTES // lanes // _ELEMENT_BYTES)
    for rows in divisors(n_rows, limit):
        for columns in divisors(n_columns, limit // rows):
            for vectors in divisors(n_inner // lanes, limit // rows // columns):
                yield LaneTile(rows, columns, vectors, lanes)


def schedule_lanes(schedule: Schedule, tile: LaneTile, n_jobs: int) -> None:
    """Schedule a product or convolution and what surrounds it in place; see :func:`attempts`."""
    reduction = find_lane_product(schedule)
    if reduction is None:
        raise ScheduleError("the workload is not one product along the last axes")
    product, shape = reduction.block, reduction.extents
    *_, inner = schedule.get_loops(product)
    _, lanes = schedule.split(inner, [None, tile.n_vectors * tile.lanes])
    partial = schedule.rfactor(lanes, len(shape))
    root = schedule.get_sblock("root")
    (last,) = schedule.get_output_blocks(root)
    kept = {name_of(schedule, block) for block in (partial, product, last)}
    for block in schedule.get_child_blocks(root):
        if name_of(schedule, block) not in kept:
            schedule.compute_inline(block)
    if extents_of(schedule, last, SPATIAL) != shape:
        raise ScheduleError("the result has another shape than the product")
    *jobs, rows, columns = schedule.get_loops(last)[: len(shape)]
    outer_rows, inner_rows = schedule.split(rows, [None, tile.n_rows])
    outer_columns, inner_columns = schedule.split(columns, [None, tile.n_columns])
    schedule.reorder(outer_rows, outer_columns, inner_rows, inner_columns)
    jobs += [outer_rows, outer_columns]
    if name_of(schedule, last) != name_of(schedule, product):
        schedule.compute_at(product, outer_columns, preserve_unit_loops=True)
        # rfactor puts the lanes first among the axes of both blocks.
        lanes, *others = schedule.get_loops(product)[len(jobs) :]
        schedule.reorder(*others, lanes)
    schedule.compute_at(partial, outer_columns, preserve_unit_loops=True)
    first = _tile_partial(schedule, partial, len(jobs), tile)
    if n_jobs > 1:
        parallelise(schedule, jobs, n_jobs)
    # Not before, as TVM runs no loop over parts of reductions in parallel.
    schedule.decompose_reduction(partial, first)
    schedule.decompose_reduction(product, schedule.get_loops(product)[-1])


def _tile_partial(schedule: Schedule, partial: SBlockRV, n_outer: int, tile: LaneTile) -> LoopRV:
    """Run the reduction outside of a tile, whose sums stay in registers; return its first loop."""
    loops = schedule.get_loops(partial)[n_outer:]
    n_reduced = len(axes_of(schedule, partial, REDUCTION))
    lanes, *outer, rows, columns = loops[:-n_reduced]
    reduced = loops[-n_reduced:]
    vectors, lane = schedule.split(lanes, [None, tile.lanes])
    schedule.reorder(*outer, *reduced, rows, columns, vectors, lane)
    for loop in (rows, columns, vectors):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    return reduced[0]
