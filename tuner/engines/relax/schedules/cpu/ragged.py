"""Schedules by rule for products whose rows no register tile divides: the last tile is smaller.

Without padding, nothing is copied and what follows the product runs on each tile. TVM cuts the loop
over tiles in two, so that the whole tiles test no bound.
"""

import math
from collections.abc import Iterator, Sequence

from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import Trace

from tuner.engines.relax.schedules.base import Workload, attempts
from tuner.engines.relax.schedules.cpu.primitives.blocks import (
    LOOP_CUT,
    inline_copies,
    is_reduction,
)
from tuner.engines.relax.schedules.cpu.primitives.products import Product
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import cycles_of

_MATRIX = 2


def ranked(workload: Workload, product: Product) -> Iterator[Trace]:
    """Rank schedules whose last tile of rows is smaller; see :class:`ScheduleRule`."""
    tiles = _tiles_of(product, workload.n_cores)
    lanes = product.registers.lanes
    return attempts(workload, schedule_ragged, tiles, lanes=lanes, n_jobs=workload.n_jobs)


def _tiles_of(product: Product, n_cores: int) -> list[list[int]]:
    """Return tiles of rows and columns, that with the fewest cycles first.

    Args:
        n_cores: Cores that share the panels of columns.

    Returns:
        Their extents on each axis, 1 on all but the last two; none if no vector divides the
        columns.
    """
    registers = product.registers
    *batch, n_rows, n_columns = product.extents
    n_vectors = n_columns // registers.lanes
    tiles = [
        [*(1 for _ in batch), rows, vectors * registers.lanes]
        for vectors in range(1, min(n_vectors, registers.n_sums) + 1)
        if n_columns % (vectors * registers.lanes) == 0
        for rows in range(1, min(n_rows, registers.n_sums // vectors) + 1)
    ]

    def cycles(tile: list[int]) -> float:
        n_panels = math.prod(batch) * (n_columns // tile[-1])
        n_turns = math.ceil(n_panels / max(n_cores, 1)) * max(n_cores, 1)
        n_steps = n_turns * math.ceil(n_rows / tile[-2]) * product.n_terms
        return n_steps * cycles_of(tile, product.operands, registers)

    return sorted(tiles, key=cycles)


def schedule_ragged(schedule: Schedule, tile: Sequence[int], lanes: int, n_jobs: int) -> None:
    """Schedule a product and what follows it in place; see :func:`attempts`."""
    inline_copies(schedule)
    product, *others = schedule.get_child_blocks(schedule.get_sblock("root"))
    if not is_reduction(schedule, product) or any(is_reduction(schedule, b) for b in others):
        raise ScheduleError("the workload is not one product")
    for block in others[:-1]:
        schedule.compute_inline(block)
    last = others[-1] if others else schedule.cache_write(product, 0, "global")
    if len(schedule.get_loops(last)) != len(tile):
        raise ScheduleError("the result has another shape than the product")
    *batch, rows, columns = schedule.get_loops(last)
    row_tiles, inner_rows = schedule.split(rows, [None, tile[-2]])
    panels, *inner_columns = schedule.split(columns, [None, tile[-1] // lanes, lanes])
    schedule.reorder(*batch, panels, row_tiles, inner_rows, *inner_columns)
    schedule.compute_at(product, row_tiles, preserve_unit_loops=True)
    own_rows, own_columns, *reduced = schedule.get_loops(product)[2 * len(batch) + _MATRIX :]
    own = schedule.split(own_columns, [None, lanes])
    schedule.reorder(*reduced, own_rows, *own)
    for row, (vectors, vector) in ((inner_rows, inner_columns), (own_rows, own)):
        schedule.unroll(row)
        schedule.unroll(vectors)
        schedule.vectorize(vector)
    schedule.annotate(row_tiles, LOOP_CUT, 1)
    if n_jobs > 1:
        schedule.parallel(schedule.fuse(*batch, panels))
    schedule.decompose_reduction(product, reduced[0])
