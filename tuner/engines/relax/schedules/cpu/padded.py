"""Schedules by rule for products whose rows or columns no register tile divides.

Both operands are padded to whole tiles first and the result is cropped afterwards, which costs two
copies of what is used; a tile of one row, or of columns that fill no vector, costs many times more.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import Trace

from tuner.engines.relax.schedules.base import Workload, attempts
from tuner.engines.relax.schedules.cpu.primitives.blocks import inline_copies, is_reduction
from tuner.engines.relax.schedules.cpu.primitives.products import Product
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import cycles_of

# Cycles that the copy of a vector takes, and the bytes of an element.
_COPY_CYCLES, _ELEMENT_BYTES = 8, 4
# Vectors of columns in a tile.
_MAX_VECTORS = 4
# Cycles of a padded product, over those without padding, from which the copies are worth it.
_MAX_CYCLES = 0.7
_MATRIX = 2


def ranked(workload: Workload, product: Product) -> Iterator[Trace]:
    """Rank schedules of a padded product; see :class:`ScheduleRule`."""
    tiles = (tile for tile, _ in _tiles_of(product))
    lanes = product.registers.lanes
    return attempts(workload, schedule_padded, tiles, lanes=lanes, n_jobs=workload.n_jobs)


def pays(_workload: Workload, product: Product) -> bool:
    """Return whether padding is estimated to save more than its copies cost."""
    return fewest_cycles(product) < _MAX_CYCLES * product.cycles


def fewest_cycles(product: Product) -> float:
    """Return the cycles of the fastest tile; infinity for what cannot be padded."""
    return next((cycles for _, cycles in _tiles_of(product)), math.inf)


@lru_cache(maxsize=1)
def _tiles_of(product: Product) -> list[tuple[list[int], float]]:
    """Return tiles of rows and columns, that with the fewest cycles first.

    Returns:
        Their extents on each axis, 1 on all but the last two, and the cycles of the product with
        the copies of what is padded; none for a vector, or a grouped convolution.
    """
    extents, operands, registers = product.extents, product.operands, product.registers
    if len(extents) < _MATRIX or product.has_groups:
        return []
    *batch, n_rows, n_columns = extents
    tiles = [
        [*(1 for _ in batch), rows, vectors * registers.lanes]
        for vectors in range(1, _MAX_VECTORS + 1)
        for rows in range(1, min(n_rows, registers.n_sums // vectors) + 1)
    ]

    def cycles(tile: list[int]) -> float:
        n_tiles = math.prod(batch) * -(-n_rows // tile[-2]) * -(-n_columns // tile[-1])
        copied = math.prod(extents) + sum(
            operand.n_bytes // _ELEMENT_BYTES
            for operand in operands
            if any(extents[axis] % tile[axis] for axis in operand.axes)
        )
        multiplied = n_tiles * product.n_terms * cycles_of(tile, operands, registers)
        return multiplied + copied / registers.lanes * _COPY_CYCLES

    return sorted(((tile, cycles(tile)) for tile in tiles), key=lambda each: each[1])


def schedule_padded(schedule: Schedule, tile: Sequence[int], lanes: int, n_jobs: int) -> None:
    """Schedule a product and what follows it in place; see :func:`attempts`."""
    inline_copies(schedule)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    product = blocks[0]
    n_reduced = len(schedule.get_loops(product)) - len(tile)
    if n_reduced < 1 or any(is_reduction(schedule, block) for block in blocks[1:]):
        raise ScheduleError("the workload is not one product")
    schedule.pad_einsum(product, [*tile, *[1] * n_reduced])
    for block in blocks[1:-1]:
        schedule.compute_inline(block)
    (crop,) = schedule.get_consumers(product)
    if schedule.get_consumers(crop):
        schedule.compute_inline(crop)
    (last,) = schedule.get_output_blocks(schedule.get_sblock("root"))
    loops = schedule.get_loops(product)
    *batch, rows, columns = loops[: len(tile)]
    reduced = loops[len(tile) :]
    outer_rows, inner_rows = schedule.split(rows, [None, tile[-2]])
    outer_columns, vectors, vector = schedule.split(columns, [None, tile[-1] // lanes, lanes])
    schedule.reorder(outer_rows, outer_columns, *reduced, inner_rows, vectors, vector)
    schedule.unroll(inner_rows)
    schedule.unroll(vectors)
    schedule.vectorize(vector)
    n_matrices = math.prod(int(schedule.get(loop).extent) for loop in batch)
    padding = schedule.get_producers(product)
    if batch and n_matrices >= n_jobs:
        matrices = schedule.fuse(*batch)
        for block in padding:
            schedule.compute_at(block, matrices)
        schedule.reverse_compute_at(last, matrices)
        if n_jobs > 1:
            schedule.parallel(matrices)
    elif n_jobs > 1:
        # Tiles of one column follow each other: they read the same weights.
        schedule.reorder(outer_columns, outer_rows)
        schedule.parallel(schedule.fuse(*batch, outer_columns))
        for block in (*padding, last):
            schedule.parallel(schedule.fuse(*schedule.get_loops(block)[:-1]))
    schedule.decompose_reduction(product, reduced[0])
