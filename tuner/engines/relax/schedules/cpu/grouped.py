"""Schedules by rule for depthwise and grouped convolutions.

A column of such a convolution reads numbers that the columns of other groups do not. Tiles are one
row of pixels by a panel of columns. Inside a tile, neighbouring pixels use the same numbers under
different weights: the loop over the window is unrolled, so that LLVM loads each number once and
keeps it in a register. Vectors lie in a group or, where groups are smaller, in several.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace

from tuner.engines.relax.schedules.base import Workload, attempts
from tuner.engines.relax.schedules.cpu.direct import (
    DirectTile,
    imbalance,
    place_tile,
    tiles_to_share,
    unroll,
)
from tuner.engines.relax.schedules.cpu.primitives.operands import Operand
from tuner.engines.relax.schedules.cpu.primitives.products import Product
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import (
    LATENCY,
    LOADS_PER_CYCLE,
    PRODUCTS_PER_CYCLE,
    Registers,
    divisors,
)
from tuner.engines.relax.schedules.cpu.primitives.spread_loads import MARK, vector_sizes

# Numbers of the longest row of a tile, and pixels of the longest tile.
_MAX_WIDTH, _MAX_ROWS = 128, 16
# Sums of more bytes do not stay on the stack, and unrolled products of more code in the cache.
_MAX_SUM_BYTES, _MAX_UNROLLED = 1023, 1024
_ELEMENT_BYTES = 4
# Vectors that may be read from memory again.
_MAX_SPILLED = 4
# Cycles of a tile besides its products: the tests of its bounds, its sums, what follows.
_TILE_CYCLES = 16
# Loads that a shuffled number counts as, measured on groups of 4 and 8.
_SPREAD_LOADS = 1.5
# Tiles that are tried before those with jobs by rows instead of columns.
_ROWS_LATER = 2


@dataclass(frozen=True)
class GroupedConvolution:
    """A convolution whose columns lie in groups.

    Attributes:
        extents: Extents of the result; the last is the columns.
        window: Extent of the window along the last axis of pixels.
        n_terms: Products that are added to each element of the result.
        n_in: Numbers of a pixel that a group reads.
        n_out: Columns of a group; 1 for a depthwise convolution.
        stride: Pixels of the data from one pixel of the result to the next.
    """

    extents: tuple[int, ...]
    window: int
    n_terms: int
    n_in: int
    n_out: int
    stride: int = 1

    def has_shuffles(self, lanes: int) -> bool:
        """Return whether a shuffle can spread the numbers of several groups over a vector."""
        fits = 1 < self.n_out < lanes and lanes % self.n_out == 0
        return fits and self.n_in in (1, self.n_out)

    def is_spread(self, width: int) -> bool:
        """Return whether a panel holds several groups of more than one column."""
        return 1 < self.n_out < width


def ranked(workload: Workload, product: Product) -> Iterator[Trace]:
    """Rank schedules whose window lies inside of their tiles; see :class:`ScheduleRule`."""
    convolution = find_grouped(product.extents, product.reduced, product.operands)
    tiles: list[DirectTile] = []
    if convolution is not None and not workload.is_serial:
        tiles = grouped_tiles(convolution, product.registers, workload.n_jobs, workload.n_cores)
    return attempts(workload, schedule_grouped, tiles, convolution=convolution)


def find_grouped(
    extents: Sequence[int], reduced: Sequence[int], operands: Sequence[Operand]
) -> GroupedConvolution | None:
    """Return a grouped convolution with the channels last; None for other reductions.

    Args:
        extents: Extents of the result.
        reduced: Extents of the reduction, the channels last.
        operands: Tensors that are multiplied.
    """
    columns = len(extents) - 1
    data, weights = (
        [each for each in operands if (each.axes == {columns}) is is_weight]
        for is_weight in (False, True)
    )
    if len(data) != 1 or len(weights) != 1 or weights[0].group or columns < 2 or len(reduced) < 2:
        return None
    is_depthwise = columns in data[0].axes
    n_out = 1 if is_depthwise else data[0].group
    if not n_out or (is_depthwise and reduced[-1] > 1):
        return None
    *_, window, n_in = reduced
    return GroupedConvolution(
        tuple(extents), window, math.prod(reduced), n_in, n_out, data[0].stride
    )


def grouped_tiles(
    convolution: GroupedConvolution, registers: Registers, n_jobs: int, n_cores: int
) -> list[DirectTile]:
    """Return tiles of a result, the one estimated to be fastest first.

    The last tile of a row is smaller where no tile but one of a single pixel divides it.

    Args:
        registers: Registers of the target.
        n_jobs: Parallel jobs; 1 for none.
        n_cores: Cores that share them.
    """
    *rows, n_pixels, _ = convolution.extents
    lengths: Sequence[int] = divisors(n_pixels, _MAX_ROWS)
    if len(lengths) == 1:  # a row has no divisors
        lengths = range(1, min(n_pixels, _MAX_ROWS) + 1)
    tiles = [
        (*(1 for _ in rows), pixels, width)
        for width in _widths(convolution, registers)
        for pixels in lengths
        if _fits(convolution, pixels, width, registers)
    ]

    def cost(tile: Sequence[int]) -> tuple[float, float]:
        pixels, width = tile[-2:]
        computed = -(-n_pixels // pixels) * pixels / n_pixels
        n_vectors = len(vector_sizes(width, registers.lanes))
        window = convolution.window
        n_products = window * pixels * n_vectors
        n_loads: float = _n_loaded(convolution, pixels)
        if convolution.is_spread(width):
            n_loads *= n_vectors * _SPREAD_LOADS
        elif convolution.n_out == 1:
            n_loads *= n_vectors
        n_loads += window * n_vectors
        step = max(n_products / PRODUCTS_PER_CYCLE, n_loads / LOADS_PER_CYCLE, LATENCY * window)
        n_steps = convolution.n_terms // window
        n_elements = pixels * width
        cycles, n_loads = (
            (n_steps * step + _TILE_CYCLES) / n_elements,
            n_steps * n_loads / n_elements,
        )
        turns = computed * imbalance(convolution.extents, tile, n_cores)
        return cycles * turns, n_loads * turns

    tiles.sort(key=cost)
    jobs = partial(_jobs, convolution.extents, n_jobs=n_jobs, n_cores=n_cores)
    ranked = [
        (place + later, DirectTile(tile, jobs(tile, columns_first=columns_first)))
        for place, tile in enumerate(tiles)
        for columns_first, later in ((True, 0), (False, _ROWS_LATER))
    ]
    return list(dict.fromkeys(tile for _, tile in sorted(ranked, key=lambda each: each[0])))


def _widths(convolution: GroupedConvolution, registers: Registers) -> list[int]:
    """Return the panels of columns that divide all of them, or a group."""
    n_out = convolution.n_out
    if n_out == 1 or convolution.has_shuffles(registers.lanes):
        widths = divisors(convolution.extents[-1], _MAX_WIDTH)
        return [width for width in widths if width % n_out == 0]
    return divisors(n_out, _MAX_WIDTH)


def _fits(convolution: GroupedConvolution, pixels: int, width: int, registers: Registers) -> bool:
    """Return whether sums, loaded numbers and a vector of weights fit the registers."""
    n_vectors = len(vector_sizes(width, registers.lanes))
    # LLVM loads the vectors of a row of the window first; single numbers are read as they are used.
    is_single = convolution.n_out > 1 and not convolution.is_spread(width)
    n_kept = pixels if is_single else _n_loaded(convolution, pixels) * n_vectors
    n_unrolled = convolution.window * pixels * n_vectors
    if convolution.is_spread(width):
        n_unrolled *= convolution.n_in
    return (
        pixels * n_vectors + n_kept + n_vectors <= registers.n + _MAX_SPILLED
        and pixels * width * _ELEMENT_BYTES <= _MAX_SUM_BYTES
        and n_unrolled <= _MAX_UNROLLED
    )


def _n_loaded(convolution: GroupedConvolution, pixels: int) -> int:
    """Return the pixels that a tile reads of one row of the window."""
    return (pixels - 1) * convolution.stride + convolution.window


def _jobs(
    extents: Sequence[int], tile: Sequence[int], n_jobs: int, n_cores: int, *, columns_first: bool
) -> tuple[int, ...]:
    """Return the jobs of each axis: of the first axes enough for all cores, as many on each."""
    n_tiles = tiles_to_share(extents, tile)
    jobs = [1] * len(n_tiles)
    *rows, pixels, columns = range(len(n_tiles))
    for axis in (columns, *rows, pixels) if columns_first else (*rows, columns, pixels):
        n_others = math.prod(jobs)
        shares = reversed(divisors(n_tiles[axis], n_tiles[axis]))
        even = (n for n in shares if n * n_others >= n_jobs and n * n_others % n_cores == 0)
        jobs[axis] = next(even, n_tiles[axis] if n_others < n_jobs else 1)
    return tuple(jobs)


def schedule_grouped(schedule: Schedule, tile: DirectTile, convolution: GroupedConvolution) -> None:
    """Schedule a grouped convolution and what surrounds it in place.

    Args:
        schedule: Schedule of an unscheduled workload.
        tile: Register tile and jobs.

    Raises:
        ScheduleError: If the workload has another structure; the schedule is then half done.
    """
    product, rows, reduced = place_tile(schedule, tile)
    *outer, window, channels = reduced
    schedule.reorder(*outer, channels, window, *rows)
    unroll(schedule, rows)
    schedule.unroll(window)
    if convolution.is_spread(tile.inner[-1]):
        # A shuffle is known when its places are constant.
        schedule.unroll(channels)
        schedule.annotate(product, MARK, [convolution.n_out, convolution.n_in])
    schedule.decompose_reduction(product, [*outer, channels][0])
