"""Schedules by rule for products of bytes on packed weights.

A tile of rows and vectors of columns keeps its sums in the registers; each step of the reduction
reads a few terms of each row and a vector of weights for as many columns as it has lanes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm import DataType
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV, Trace

from tuner.engines.relax.codegen.cpu.dot_instructions import (
    INSTRUCTIONS,
    DotInstruction,
    packed_for,
)
from tuner.engines.relax.ir.packed_layouts import PACKS
from tuner.engines.relax.schedules.base import Workload, attempts
from tuner.engines.relax.schedules.cpu.primitives.blocks import (
    REDUCTION,
    SPATIAL,
    extents_of,
    name_of,
    only_reduction,
)
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import (
    FAR_CYCLES,
    L1_BYTES,
    LATENCY,
    LOADS_PER_CYCLE,
    PRODUCTS_PER_CYCLE,
    divisors,
)
from tuner.engines.relax.schedules.cpu.rows import parallelise

#: Names of the intrinsics, by which traces of these schedules are known.
INTRINSICS = tuple(each.name for each in INSTRUCTIONS)

# Weights that are read side by side; the CPU fetches few streams ahead.
_MAX_VECTORS = 4


@dataclass(frozen=True)
class DotProduct:
    """A sum of products of bytes.

    Attributes:
        extents: Extents of its result; rows and columns are the last two.
        n_reduced: Number of its reduced axes.
        n_weight_bytes: Bytes of its packed weights.
        n_data_bytes: Bytes of what they multiply.
        lanes: Columns whose weights lie side by side.
        instruction: Instruction that its weights are packed for; None for those of few bits.
    """

    block: SBlockRV
    extents: list[int]
    n_reduced: int
    n_weight_bytes: int
    n_data_bytes: int
    lanes: int
    instruction: DotInstruction | None = None


def find_dot_product(schedule: Schedule) -> DotProduct | None:
    """Return the only reduction of a workload if it multiplies bytes with packed weights."""
    block = only_reduction(schedule)
    if block is None:
        return None
    extents = extents_of(schedule, block, SPATIAL)
    sources = [region.source for region in schedule.get(block).reads]
    packed = [(each, by) for each in sources if (by := packed_for(each)) is not None]
    if not packed or len(sources) != 2 or len(extents) < 2:
        return None
    weight, by = packed[0]
    (data,) = (each for each in sources if not each.same_as(weight))
    if str(data.dtype) != by.data or extents[-1] % by.lanes:
        return None
    n_reduced = len(extents_of(schedule, block, REDUCTION))
    n_bytes = (_n_bytes(weight), _n_bytes(data))
    return DotProduct(block, extents, n_reduced, *n_bytes, by.lanes, by)


def _n_bytes(buffer: Any) -> int:
    n_elements = math.prod(int(size) for size in buffer.shape)
    return n_elements * int(DataType(buffer.dtype).itemsize)


@dataclass(frozen=True)
class DotTile:
    """A register tile, and the order of tiles.

    Attributes:
        vectors: Vectors of columns of the tile.
        by_columns: True to run all tiles of some columns one after the other.
    """

    rows: int
    vectors: int
    by_columns: bool


def ranked(workload: Workload, product: DotProduct) -> Iterator[Trace]:
    """Rank schedules of a product of bytes; see :class:`ScheduleRule`."""
    return attempts(workload, schedule_dots, dot_tiles(product), n_jobs=workload.n_jobs)


def dot_tiles(dots: DotProduct) -> list[DotTile]:
    """Return the tiles that divide a result, the fastest by estimate first.

    Those in the better order come before all others.
    """
    *batch, n_rows, n_columns = dots.extents
    n_term_bytes = dots.n_weight_bytes // n_columns
    by = dots.instruction
    assert by is not None
    # Beside sums and vectors of weights, a tile needs a register for data, and one for products.
    n_sums_and_weights = by.n_registers - (1 if by.accumulates else 2)
    sizes = [
        (rows, vectors)
        for rows in divisors(n_rows, by.n_registers)
        for vectors in divisors(n_columns // by.lanes, _MAX_VECTORS)
        if rows * vectors + vectors <= n_sums_and_weights
    ]

    def cycles(size: tuple[int, int]) -> tuple[float, float]:
        """Estimate the cycles of a product, and its loads."""
        rows, vectors = size
        n_products, n_loads = rows * vectors, rows + vectors
        is_far = n_term_bytes * vectors * by.lanes > L1_BYTES
        far_cycles = vectors * FAR_CYCLES if is_far else 0.0
        step = (n_products / PRODUCTS_PER_CYCLE, n_loads / LOADS_PER_CYCLE, LATENCY, far_cycles)
        return max(step) / n_products, n_loads / n_products

    sizes.sort(key=cycles)
    rows, vectors = sizes[0]
    n_row_tiles = math.prod(batch) * n_rows // rows
    n_column_tiles = n_columns // by.lanes // vectors
    # All weights are read for each row of tiles, or all data for each column.
    by_columns = n_column_tiles * dots.n_data_bytes < n_row_tiles * dots.n_weight_bytes
    orders = (by_columns, not by_columns)
    return [DotTile(*size, order) for order in orders for size in sizes]


def schedule_dots(schedule: Schedule, tile: DotTile, n_jobs: int) -> None:
    """Schedule a product of bytes and what surrounds it in place; see :func:`attempts`."""
    dots = find_dot_product(schedule)
    if dots is None or dots.instruction is None:
        raise ScheduleError("the workload is not one product of bytes")
    outer = place_tiles(schedule, dots, n_jobs, tile)
    first = _tile(schedule, dots, len(outer))
    if n_jobs > 1:
        parallelise(schedule, outer, n_jobs)
    start_sums(schedule, dots.block, first)
    *_, lanes, _ = schedule.get_loops(dots.block)
    schedule.tensorize(lanes, dots.instruction.name)


def place_tiles(schedule: Schedule, dots: DotProduct, n_jobs: int, tile: DotTile) -> list[LoopRV]:
    """Tile a product and what follows it, and schedule all else; return the loops over tiles."""
    product, root = dots.block, schedule.get_sblock("root")
    (last,) = schedule.get_output_blocks(root)
    padding = [name_of(schedule, block) for block in schedule.get_producers(product)]
    kept = {name_of(schedule, product), name_of(schedule, last), *padding}
    for block in schedule.get_child_blocks(root):
        name = name_of(schedule, block)
        if PACKS in schedule.get(block).annotations:
            continue
        if name in padding:
            _run_in_parallel(schedule, block, n_jobs)
        elif name not in kept:
            schedule.compute_inline(block)
    is_apart = extents_of(schedule, last, SPATIAL) != dots.extents
    tiled = product if is_apart else last
    *batch, row, column = schedule.get_loops(tiled)[: len(dots.extents)]
    outer_row, inner_row = schedule.split(row, [None, tile.rows])
    outer_column, inner_column = schedule.split(column, [None, tile.vectors * dots.lanes])
    outer = [*batch, outer_row, outer_column]
    if tile.by_columns:
        outer = [outer_column, *batch, outer_row]
    schedule.reorder(*outer, inner_row, inner_column)
    if is_apart:
        _run_in_parallel(schedule, last, n_jobs)
    elif name_of(schedule, last) != name_of(schedule, product):
        schedule.compute_at(product, outer[-1], preserve_unit_loops=True)
        _, lanes = schedule.split(inner_column, [None, dots.lanes])
        schedule.vectorize(lanes)
    return outer


def _tile(schedule: Schedule, dots: DotProduct, n_outer: int) -> LoopRV:
    """Run the reduction outside of a tile; return its first loop."""
    loops = schedule.get_loops(dots.block)[n_outer:]
    *units, rows, columns = loops[: -dots.n_reduced]
    *reduced, terms = loops[-dots.n_reduced :]
    vectors, lanes = schedule.split(columns, [None, dots.lanes])
    assert dots.instruction is not None
    steps, few = schedule.split(terms, [None, dots.instruction.terms])
    schedule.reorder(*units, *reduced, steps, rows, vectors, lanes, few)
    schedule.unroll(rows)
    schedule.unroll(vectors)
    return (*reduced, steps)[0]


def start_sums(schedule: Schedule, product: SBlockRV, first: LoopRV) -> None:
    """Set the sums of a tile to zero, as vectors, before the first loop of its reduction."""
    start = schedule.decompose_reduction(product, first)
    *_, vectors, lanes = schedule.get_loops(start)
    schedule.unroll(vectors)
    schedule.vectorize(lanes)


def _run_in_parallel(schedule: Schedule, block: SBlockRV, n_jobs: int) -> None:
    loops = schedule.get_loops(block)
    if n_jobs > 1 and len(loops) > 1:
        parallelise(schedule, list(loops[:-1]), n_jobs)
