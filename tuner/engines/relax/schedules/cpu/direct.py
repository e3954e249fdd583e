"""Schedules by rule for products and convolutions whose weights fit the private caches.

A job takes some rows of the result. Panel by panel of columns, register tiles of rows by vectors
hold the sums while the whole reduction runs inside them. The vectors of a panel are loaded once for
all rows of a tile, and each number of the data once for all vectors: a loop over vectors outside of
the rows would have LLVM keep the numbers of all rows, which leaves too few registers for the sums.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV, Trace

from tuner.engines.relax.schedules.base import JOBS_PER_CORE, Workload, attempts
from tuner.engines.relax.schedules.cpu.primitives.blocks import (
    LOOP_CUT,
    SPATIAL,
    extents_of,
    is_copy,
    is_movement,
    is_reduction,
    name_of,
)
from tuner.engines.relax.schedules.cpu.primitives.operands import Operand
from tuner.engines.relax.schedules.cpu.primitives.products import Product
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import (
    FAR_CYCLES,
    Registers,
    cycles_of,
    divisors,
    largest_divisor,
    max_rows,
)
from tuner.engines.relax.schedules.cpu.primitives.spread_loads import vector_sizes

# Numbers of the longest row of a tile, and vectors of the smallest tile.
_MAX_WIDTH, _MIN_SUMS = 96, 8
# Rows whose addresses fit the other registers, and loads a cycle, of vectors and of numbers.
_MAX_ROWS, _LOADS_PER_CYCLE = 16, 1.15
# Cycles of the load of a vector of weights from the second cache, with a panel of at most these
# bytes that at least a number of tiles use.
_NEAR_CYCLES, _PANEL_BYTES, _MIN_USES = 2.0, 3 * 2**17, 8
# Time of a tile of parts of several rows that a window slides over, over that of whole rows or of a
# part of one: more of its reads test for padding.
_BLOCK_COST = 1.4
# Most rows of a tile in a row that no tile divides.
_MAX_UNEVEN_ROWS = 9
# Largest cost of tiles with a smaller last one, over tiles that divide the rows.
_MAX_UNEVEN = 0.9
# Factor of the jobs that a search also tries, and the tiles that it tries before.
_MORE_JOBS, _MORE_JOBS_LATER = 4, 2
# Bytes of weights that stay in the private cache of a core.
_L2_BYTES = 2**19
# Bytes of the data of a job, at most: its padded copy and its rows stay in the private cache.
_JOB_BYTES = 2**18


@dataclass(frozen=True)
class DirectTile:
    """A register tile, and the parallel jobs of each axis.

    Attributes:
        inner: Extents of the tile, one an axis of the result.
        jobs: Jobs that share each axis.
    """

    inner: tuple[int, ...]
    jobs: tuple[int, ...]


def ranked(workload: Workload, product: Product) -> Iterator[Trace]:
    """Rank schedules with register tiles; see :class:`ScheduleRule`."""
    return attempts(workload, schedule_direct, _tiles_of(workload, product))


def cycles_per_term(workload: Workload, product: Product) -> float:
    """Estimate the cycles for one step of the reduction; infinity without whole vectors."""
    tiles = _tiles_of(workload, product)
    if not tiles or tiles[0].inner[-1] < product.registers.lanes:
        return math.inf
    return tiling_cycles(tiles[0].inner, product.extents, product.operands, product.registers)


@lru_cache(maxsize=1)
def _tiles_of(workload: Workload, product: Product) -> list[DirectTile]:
    """Return tiles of rows by vectors, for numbers that whole vectors share."""
    columns = len(product.extents) - 1
    are_shared = not product.has_groups and any(columns not in o.axes for o in product.operands)
    if workload.is_serial or not are_shared:
        return []
    return direct_tiles(
        *(product.extents, product.operands, product.registers, workload.n_jobs),
        has_window=product.has_window,
    )


def direct_tiles(
    extents: Sequence[int],
    operands: Sequence[Operand],
    registers: Registers,
    n_jobs: int,
    *,
    has_window: bool = False,
) -> list[DirectTile]:
    """Return tiles of the result, the one estimated to be fastest first.

    Where the tiles that divide the last axis of rows are slow, as for 37 pixels, the last tile is
    smaller than the others.

    Args:
        extents: Extents of the result; the last is the columns.
        operands: Tensors that are multiplied.
        registers: Registers of the target.
        n_jobs: Parallel jobs.
        has_window: True for a convolution with a window of more than one element.

    Returns:
        An empty list without tiles of enough sums: these would wait for each other.
    """
    *rows, n_columns = extents
    data, weights = (_largest(operands, len(rows), has=has) for has in (False, True))
    n_cores = max(n_jobs // JOBS_PER_CORE, 1)
    n_jobs = max(n_jobs, data // _JOB_BYTES)
    # Weights that no private cache holds are read once, all rows after each other.
    columns_first = weights > max(data, _L2_BYTES)
    even: list[tuple[int, ...]] = []
    uneven: list[tuple[int, ...]] = []
    for width in divisors(n_columns, _MAX_WIDTH):
        n_vectors = len(vector_sizes(width, registers.lanes))
        n_rows = min(max_rows(n_vectors, registers), _MAX_ROWS)
        for inner in _rows(rows, n_rows) if n_rows > 0 else ():
            even += [(*inner, width)] * (math.prod(inner) * n_vectors >= _MIN_SUMS)
        if width >= registers.lanes:
            most = min(n_rows, _MAX_UNEVEN_ROWS)
            sizes = range(math.ceil(_MIN_SUMS / n_vectors), most + 1)
            uneven += [(*inner, width) for size in sizes for inner in _uneven_rows(rows, size)]

    def cost(tile: Sequence[int]) -> float:
        is_block = has_window and math.prod(tile[:-2]) > 1 and tile[-2] < rows[-1]
        cycles = tiling_cycles(tile, extents, operands, registers)
        return cycles * (_BLOCK_COST if is_block else 1.0) * imbalance(extents, tile, n_cores)

    limit = _MAX_UNEVEN * min(map(cost, even), default=math.inf)
    tiles = sorted([*even, *(tile for tile in uneven if cost(tile) <= limit)], key=cost)
    ranked = [
        (place + later, DirectTile(tile, _jobs(extents, tile, n, columns_first=columns_first)))
        for place, tile in enumerate(tiles)
        for n, later in ((n_jobs, 0), (_MORE_JOBS * n_jobs, _MORE_JOBS_LATER))
    ]
    return list(dict.fromkeys(tile for _, tile in sorted(ranked, key=lambda each: each[0])))


def tiling_cycles(
    tile: Sequence[int],
    extents: Sequence[int],
    operands: Sequence[Operand],
    registers: Registers,
) -> float:
    """Estimate the cycles that all tiles of a result take for one step of the reduction."""
    n_tiles = math.prod(-(-extent // size) for extent, size in zip(extents, tile, strict=True))
    n_panels = -(-extents[-1] // tile[-1])
    weights = _largest(operands, len(extents) - 1, has=True)
    is_near = weights <= n_panels * _PANEL_BYTES and n_tiles >= n_panels * _MIN_USES
    far_cycles = _NEAR_CYCLES if is_near else FAR_CYCLES
    return n_tiles * cycles_of(tile, operands, registers, _LOADS_PER_CYCLE, far_cycles)


def _largest(operands: Sequence[Operand], columns: int, *, has: bool) -> int:
    """Return the bytes of the largest operand that has the axis of the columns, or has not."""
    return max((each.n_bytes for each in operands if (columns in each.axes) is has), default=0)


def _rows(extents: Sequence[int], n_rows: int) -> Iterator[tuple[int, ...]]:
    """Yield divisors of the extents with a product up to a limit; large ones of the last first."""
    if not extents:
        yield ()
        return
    *others, last = extents
    for size in divisors(last, n_rows):
        yield from ((*rows, size) for rows in _rows(others, n_rows // size))


def _uneven_rows(extents: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Return a tile of a size along the last axis of several rows; none if it divides them."""
    axis = max((n for n, extent in enumerate(extents) if extent > 1), default=-1)
    if axis < 0 or extents[axis] <= size or extents[axis] % size == 0:
        return []
    return [tuple(size if n == axis else 1 for n in range(len(extents)))]


def _jobs(
    extents: Sequence[int], tile: Sequence[int], n_jobs: int, *, columns_first: bool
) -> tuple[int, ...]:
    """Return the jobs of each axis: of the first axes as many as wanted, then of the next."""
    n_tiles = tiles_to_share(extents, tile)
    jobs = [1] * len(n_tiles)
    for axis in sorted(range(len(n_tiles)), key=lambda n: columns_first and n < len(n_tiles) - 1):
        jobs[axis] = next(
            (d for d in range(n_jobs, n_tiles[axis]) if n_tiles[axis] % d == 0), n_tiles[axis]
        )
        n_jobs = math.ceil(n_jobs / jobs[axis])
    return tuple(jobs)


def tiles_to_share(extents: Sequence[int], tile: Sequence[int]) -> list[int]:
    """Return the tiles of each axis that jobs can share: 1 if the last tile is smaller."""
    return [
        1 if extent % size else extent // size for extent, size in zip(extents, tile, strict=True)
    ]


def imbalance(extents: Sequence[int], tile: Sequence[int], n_cores: int) -> float:
    """Return the time of uneven tiles over that of an even share for each core; 1 for even tiles.

    The tiles of a row of which the last is smaller belong to one job.
    """
    if not _is_uneven(extents, tile):
        return 1.0
    n_shared = math.prod(tiles_to_share(extents, tile))
    return math.ceil(n_shared / n_cores) * n_cores / n_shared


def _is_uneven(extents: Sequence[int], tile: Sequence[int]) -> bool:
    """Return whether the last tile of some axis is smaller than the others."""
    return any(extent % size for extent, size in zip(extents, tile, strict=False))


def schedule_direct(schedule: Schedule, tile: DirectTile) -> None:
    """Schedule a product or convolution and what surrounds it in place.

    Args:
        schedule: Schedule of an unscheduled workload.
        tile: Register tile and jobs.

    Raises:
        ScheduleError: If the workload is not one product; the schedule is then half done.
    """
    # TVM does not cut loops reliably where padding is tested inside them.
    product, rows, reduced = place_tile(schedule, tile, copies_padding=True)
    schedule.reorder(*reduced, *rows)
    unroll(schedule, rows)
    schedule.decompose_reduction(product, reduced[0])


def place_tile(
    schedule: Schedule, tile: DirectTile, *, copies_padding: bool = False
) -> tuple[SBlockRV, list[LoopRV], list[LoopRV]]:
    """Compute a product tile by tile in parallel jobs, panel by panel of columns.

    Args:
        schedule: Schedule of an unscheduled workload.
        tile: Register tile and jobs.
        copies_padding: True to copy the padded data of each job if the last tile of a row is
            smaller, rather than to test padding in the product.

    Returns:
        The product, its loops over a tile, and those over the reduction, which are yet to be put
        in order.

    Raises:
        ScheduleError: If the workload is not one product; the schedule is then half done.
    """
    (result, *_) = schedule.get_output_blocks(schedule.get_sblock("root"))
    is_uneven = _is_uneven(extents_of(schedule, result, SPATIAL), tile.inner)
    product, producers, last = _blocks(schedule, inlines_padding=not (is_uneven and copies_padding))
    loops = schedule.get_loops(last)
    if len(loops) != len(tile.inner):
        raise ScheduleError("the result has another shape than the product")
    extents = [int(schedule.get(loop).extent) for loop in loops]
    splits = [
        schedule.split(loop, [jobs, None, size])
        for loop, jobs, size in zip(loops, tile.jobs, tile.inner, strict=True)
    ]
    jobs, outer, inner = (list(each) for each in zip(*splits, strict=True))
    *outer_rows, panels = outer
    schedule.reorder(*jobs, panels, *outer_rows, *inner)
    for extent, size, loop in zip(extents, tile.inner, outer, strict=True):
        if extent % size:
            schedule.annotate(loop, LOOP_CUT, 1)
    unroll(schedule, inner)
    schedule.compute_at(product, outer_rows[-1], preserve_unit_loops=True)
    own = schedule.get_loops(product)[len(jobs) + len(outer) :]
    job = schedule.fuse(*jobs)
    for block in reversed(producers):
        schedule.compute_at(block, job)
        last = schedule.get_loops(block)[-1]
        n = largest_divisor(int(schedule.get(last).extent), _MAX_WIDTH)
        schedule.vectorize(schedule.split(last, [None, n])[1])
    if math.prod(tile.jobs) > 1:
        schedule.parallel(job)
    return product, list(own[: len(tile.inner)]), list(own[len(tile.inner) :])


def _blocks(
    schedule: Schedule, *, inlines_padding: bool
) -> tuple[SBlockRV, list[SBlockRV], SBlockRV]:
    """Return the product, what is computed before it, and the last block; inline the others."""
    root = schedule.get_sblock("root")
    blocks = schedule.get_child_blocks(root)
    products = [block for block in blocks if is_reduction(schedule, block)]
    if len(products) != 1:
        raise ScheduleError("the workload is not one product")
    (product,) = products
    position = [name_of(schedule, block) for block in blocks].index(name_of(schedule, product))
    producers = []
    for block in blocks[:position]:
        statement = schedule.get(block)
        if is_copy(statement) or (inlines_padding and is_movement(statement)):
            schedule.compute_inline(block)
        else:
            producers.append(block)
    others = blocks[position + 1 :]
    for block in others[:-1]:
        schedule.compute_inline(block)
    last = others[-1] if others else schedule.cache_write(product, 0, "global")
    return product, producers, last


def unroll(schedule: Schedule, loops: Sequence[LoopRV]) -> None:
    """Unroll loops but the last, which becomes a vector."""
    *outer, vector = loops
    for loop in outer:
        schedule.unroll(loop)
    schedule.vectorize(vector)
