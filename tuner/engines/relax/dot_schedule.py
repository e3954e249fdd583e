"""Schedules by rule for products of bytes on packed weights.

A tile of rows and vectors of columns keeps its sums in the registers; each step of the reduction
reads four bytes of each row and a vector of weights for 16 columns.
"""

import math
from dataclasses import dataclass

from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tuner.engines.relax.blocks import REDUCTION, SPATIAL, extents_of, name_of
from tuner.engines.relax.dot_products import LANES, TERMS
from tuner.engines.relax.register_tiles import (
    FAR_CYCLES,
    L1_BYTES,
    LATENCY,
    LOADS_PER_CYCLE,
    PRODUCTS_PER_CYCLE,
    divisors,
)
from tuner.engines.relax.row_schedule import parallelise

INTRINSIC = "dot_16x4_vnni"

# Vector registers, of which each tile needs one for data and one for each vector of weights.
_N_REGISTERS = 32
# Weights that are read side by side; the CPU fetches few streams ahead.
_MAX_VECTORS = 4


@dataclass(frozen=True)
class DotProduct:
    """A sum of products of bytes.

    Attributes:
        block: Its block.
        extents: Extents of its result; rows and columns are the last two.
        n_reduced: Number of its reduced axes.
        n_weight_bytes: Bytes of its packed weights.
        n_data_bytes: Bytes of what they multiply.
    """

    block: SBlockRV
    extents: list[int]
    n_reduced: int
    n_weight_bytes: int
    n_data_bytes: int


def find_dot_product(schedule: Schedule) -> DotProduct | None:
    """Return the only reduction of a workload if it multiplies bytes with packed weights."""
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    reductions = [block for block in blocks if extents_of(schedule, block, REDUCTION)]
    if len(reductions) != 1:
        return None
    (block,) = reductions
    statement = schedule.get(block)
    reads = {str(region.source.dtype): region.source for region in statement.reads}
    extents = extents_of(schedule, block, SPATIAL)
    if not {"uint8", "int8"} <= reads.keys() or len(extents) < 2:
        return None
    shape = [int(size) for size in reads["int8"].shape]
    if shape[-2:] != [LANES, TERMS] or extents[-1] % LANES:
        return None
    n_reduced = len(extents_of(schedule, block, REDUCTION))
    n_data_bytes = math.prod(int(size) for size in reads["uint8"].shape)
    return DotProduct(block, extents, n_reduced, math.prod(shape), n_data_bytes)


@dataclass(frozen=True)
class DotTile:
    """A register tile, and the order of tiles.

    Attributes:
        rows: Rows of the tile.
        vectors: Vectors of columns of the tile.
        by_columns: True to run all tiles of some columns one after the other.
    """

    rows: int
    vectors: int
    by_columns: bool


def dot_tiles(dots: DotProduct) -> list[DotTile]:
    """Return the tiles that divide a result, the fastest by estimate first.

    Those in the better order come before all others.
    """
    *batch, n_rows, n_columns = dots.extents
    n_term_bytes = dots.n_weight_bytes // n_columns
    sizes = [
        (rows, vectors)
        for rows in divisors(n_rows, _N_REGISTERS)
        for vectors in divisors(n_columns // LANES, _MAX_VECTORS)
        if rows * vectors + vectors + 1 <= _N_REGISTERS
    ]

    def cycles(size: tuple[int, int]) -> tuple[float, float]:
        """Estimate the cycles of a product, and its loads."""
        rows, vectors = size
        n_products, n_loads = rows * vectors, rows + vectors
        is_far = n_term_bytes * vectors * LANES > L1_BYTES
        far_cycles = vectors * FAR_CYCLES if is_far else 0.0
        step = (n_products / PRODUCTS_PER_CYCLE, n_loads / LOADS_PER_CYCLE, LATENCY, far_cycles)
        return max(step) / n_products, n_loads / n_products

    sizes.sort(key=cycles)
    rows, vectors = sizes[0]
    n_row_tiles = math.prod(batch) * n_rows // rows
    n_column_tiles = n_columns // LANES // vectors
    # All weights are read for each row of tiles, or all data for each column.
    by_columns = n_column_tiles * dots.n_data_bytes < n_row_tiles * dots.n_weight_bytes
    orders = (by_columns, not by_columns)
    return [DotTile(*size, order) for order in orders for size in sizes]


def schedule_dots(schedule: Schedule, n_jobs: int, tile: DotTile | None = None) -> None:
    """Schedule a product of bytes and what surrounds it in place.

    Args:
        schedule: Schedule of an unscheduled workload.
        n_jobs: Parallel jobs to cut the result into; 1 for none.
        tile: Register tile; the fastest by estimate by default.

    Raises:
        ScheduleError: If the workload has another structure; the schedule is then half done.
    """
    dots = find_dot_product(schedule)
    if dots is None:
        raise ScheduleError("the workload is not one product of bytes")
    outer = place_tiles(schedule, dots, n_jobs, tile or dot_tiles(dots)[0])
    first = _tile(schedule, dots, len(outer))
    if n_jobs > 1:
        parallelise(schedule, outer, n_jobs)
    _tensorise(schedule, dots.block, first)


def place_tiles(schedule: Schedule, dots: DotProduct, n_jobs: int, tile: DotTile) -> list[LoopRV]:
    """Tile a product and what follows it, and schedule all else; return the loops over tiles."""
    product, root = dots.block, schedule.get_sblock("root")
    (last,) = schedule.get_output_blocks(root)
    padding = [name_of(schedule, block) for block in schedule.get_producers(product)]
    kept = {name_of(schedule, product), name_of(schedule, last), *padding}
    for block in schedule.get_child_blocks(root):
        name = name_of(schedule, block)
        if name in padding:
            _run_in_parallel(schedule, block, n_jobs)
        elif name not in kept:
            schedule.compute_inline(block)
    is_apart = extents_of(schedule, last, SPATIAL) != dots.extents
    tiled = product if is_apart else last
    *batch, row, column = schedule.get_loops(tiled)[: len(dots.extents)]
    outer_row, inner_row = schedule.split(row, [None, tile.rows])
    outer_column, inner_column = schedule.split(column, [None, tile.vectors * LANES])
    outer = [*batch, outer_row, outer_column]
    if tile.by_columns:
        outer = [outer_column, *batch, outer_row]
    schedule.reorder(*outer, inner_row, inner_column)
    if is_apart:
        _run_in_parallel(schedule, last, n_jobs)
    elif name_of(schedule, last) != name_of(schedule, product):
        schedule.compute_at(product, outer[-1], preserve_unit_loops=True)
        _, lanes = schedule.split(inner_column, [None, LANES])
        schedule.vectorize(lanes)
    return outer


def _tile(schedule: Schedule, dots: DotProduct, n_outer: int) -> LoopRV:
    """Run the reduction outside of a tile; return its first loop."""
    loops = schedule.get_loops(dots.block)[n_outer:]
    *units, rows, columns = loops[: -dots.n_reduced]
    *reduced, terms = loops[-dots.n_reduced :]
    vectors, lanes = schedule.split(columns, [None, LANES])
    steps, four = schedule.split(terms, [None, TERMS])
    schedule.reorder(*units, *reduced, steps, rows, vectors, lanes, four)
    schedule.unroll(rows)
    schedule.unroll(vectors)
    return (*reduced, steps)[0]


def start_sums(schedule: Schedule, product: SBlockRV, first: LoopRV) -> None:
    """Set the sums of a tile to zero, as vectors, before the first loop of its reduction."""
    start = schedule.decompose_reduction(product, first)
    *_, vectors, lanes = schedule.get_loops(start)
    schedule.unroll(vectors)
    schedule.vectorize(lanes)


def _tensorise(schedule: Schedule, product: SBlockRV, first: LoopRV) -> None:
    start_sums(schedule, product, first)
    *_, lanes, _ = schedule.get_loops(product)
    schedule.tensorize(lanes, INTRINSIC)


def _run_in_parallel(schedule: Schedule, block: SBlockRV, n_jobs: int) -> None:
    loops = schedule.get_loops(block)
    if n_jobs > 1 and len(loops) > 1:
        parallelise(schedule, list(loops[:-1]), n_jobs)
