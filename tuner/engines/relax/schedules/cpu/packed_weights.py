"""Schedules by rule for products of floats with packed weights of few bits.

A tile of rows and vectors of columns keeps its sums in the registers. Each step of the reduction
unpacks vectors of weights, and multiplies them by a number of each row.
"""

import math
from collections.abc import Iterator

from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import Trace

from tuner.engines.relax.graph.passes.products.weight_products import LANES, UNPACKING
from tuner.engines.relax.schedules.base import Workload, attempts
from tuner.engines.relax.schedules.cpu.dots import (
    DotProduct,
    DotTile,
    place_tiles,
    start_sums,
)
from tuner.engines.relax.schedules.cpu.primitives.blocks import (
    REDUCTION,
    SPATIAL,
    extents_of,
    only_reduction,
)
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import (
    LATENCY,
    LOADS_PER_CYCLE,
    PRODUCTS_PER_CYCLE,
    divisors,
)
from tuner.engines.relax.schedules.cpu.rows import parallelise

#: Annotation of the products, by which their traces are known.
MARK = "tuner.packed_weights"

_N_REGISTERS = 32
_MAX_VECTORS = 4
_PACKED_RANK = 3


def ranked(workload: Workload, product: DotProduct) -> Iterator[Trace]:
    """Rank schedules of a product with packed weights; see :class:`ScheduleRule`."""
    return attempts(workload, schedule_weights, weight_tiles(product), n_jobs=workload.n_jobs)


def find_weight_product(schedule: Schedule) -> DotProduct | None:
    """Return the only reduction of a workload if it multiplies floats with packed weights."""
    block = only_reduction(schedule)
    if block is None:
        return None
    extents = extents_of(schedule, block, SPATIAL)
    sources = [region.source for region in schedule.get(block).reads]
    shapes = [(str(each.dtype), [int(size) for size in each.shape]) for each in sources]
    packed = [
        (dtype, shape)
        for dtype, shape in shapes
        if len(shape) == _PACKED_RANK and shape[-1] == LANES and shape[0] * LANES == extents[-1]
    ]
    weights = [shape for dtype, shape in packed if dtype == "uint8"]
    if len(extents) < 2 or not weights or "float32" not in [dtype for dtype, _ in packed]:
        return None
    n_reduced = len(extents_of(schedule, block, REDUCTION))
    n_weight_bytes = max(math.prod(shape) for shape in weights)
    return DotProduct(block, extents, n_reduced, n_weight_bytes, 0, LANES)


def weight_tiles(product: DotProduct) -> list[DotTile]:
    """Return the tiles that divide a result, the fastest by estimate first.

    All rows are multiplied with the same weights before the next are read.
    """
    *_, n_rows, n_columns = product.extents
    sizes = [
        (rows, vectors)
        for rows in divisors(n_rows, _N_REGISTERS)
        for vectors in divisors(n_columns // LANES, _MAX_VECTORS)
        if rows * vectors + 2 * vectors + 1 <= _N_REGISTERS
    ]

    def cycles(size: tuple[int, int]) -> tuple[float, int]:
        """Estimate the cycles of a product; of equal tiles, the one with more vectors is first."""
        rows, vectors = size
        n_instructions = vectors * (rows + UNPACKING)
        step = (n_instructions / PRODUCTS_PER_CYCLE, (rows + vectors) / LOADS_PER_CYCLE, LATENCY)
        return max(step) / (rows * vectors), -vectors

    return [DotTile(*size, by_columns=True) for size in sorted(sizes, key=cycles)]


def schedule_weights(schedule: Schedule, tile: DotTile, n_jobs: int) -> None:
    """Schedule a product with packed weights and what surrounds it; see :func:`attempts`."""
    product = find_weight_product(schedule)
    if product is None:
        raise ScheduleError("the workload is not one product with packed weights")
    schedule.annotate(product.block, MARK, 1)
    outer = place_tiles(schedule, product, n_jobs, tile)
    loops = schedule.get_loops(product.block)[len(outer) :]
    *units, rows, columns = loops[: -product.n_reduced]
    *reduced, within = loops[-product.n_reduced :]
    vectors, lanes = schedule.split(columns, [None, LANES])
    schedule.reorder(*units, *reduced, within, rows, vectors, lanes)
    for loop in (within, rows, vectors):
        schedule.unroll(loop)
    schedule.vectorize(lanes)
    if n_jobs > 1:
        parallelise(schedule, outer, n_jobs)
    start_sums(schedule, product.block, reduced[0])
