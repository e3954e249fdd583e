"""Schedules by rule for products of few rows with large weights, which come from memory.

A panel of columns takes a block of the reduction at a time: all tiles of rows multiply the same
block of weights, which stays in the first cache, while the next comes from memory. The sums of the
panel wait in the private cache between two blocks.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace

from tuner.engines.relax.schedules.base import Workload
from tuner.engines.relax.schedules.cpu import direct
from tuner.engines.relax.schedules.cpu.direct import tiling_cycles
from tuner.engines.relax.schedules.cpu.primitives import prefetch
from tuner.engines.relax.schedules.cpu.primitives.operands import Operand
from tuner.engines.relax.schedules.cpu.primitives.products import (
    REDUCTION,
    SPATIAL,
    Product,
    tiles_of,
)
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import (
    Registers,
    divisors,
    largest_divisor,
    n_vector_steps,
    register_tiles,
)
from tuner.engines.relax.schedules.cpu.tiled import n_tile_jobs

# Most reduced elements of a block, the likeliest first, for sums that fit the first cache with it
# and for others: the more elements, the less often sums are loaded and stored.
_BLOCKS, _BLOCKS_OF_MANY_SUMS = (32, 64, 128), (64, 32, 128)
_MAX_TILES = 4
_ELEMENT_BYTES = 4
# Bytes of the sums of a panel that fit the first cache, and at most.
_NEAR_BYTES, _MAX_BYTES = 2**14, 2**16
# Index among TVM's choices of 0, 16, 64 and 512 unrolled statements: the rows of a tile.
_UNROLL_CHOICE = 1
# Rows above which fetching weights ahead costs more than it saves: below 100 rows it is 4 % faster,
# from 300 on 7 % slower.
_MAX_ROWS = 128
# Largest estimated cycles over a direct schedule's.
_MAX_CYCLES = 1.1


def ranked(workload: Workload, product: Product) -> Iterator[Trace]:
    """Rank schedules that prefetch weights; see :class:`ScheduleRule`."""
    # Prefetches only pay off in some programs of a space; a search starts from these.
    spaces = prefetch.spaces_with_prefetch(workload.module, product.spaces)
    if not spaces:
        return
    # The second space adds the epilogue to each panel.
    space = spaces[min(1, len(spaces) - 1)]
    extents = [extent for _, extent in tiles_of(space, SPATIAL)]
    tiles = _tiles(extents, _near(product.operands), product.registers)
    n_rows = math.prod(extents[:-1])
    is_near = n_rows * tiles[0][-1] * _ELEMENT_BYTES <= _NEAR_BYTES if tiles else False
    blocks = _BLOCKS if is_near else _BLOCKS_OF_MANY_SUMS
    for tile, n_terms in itertools.product(tiles[:_MAX_TILES], blocks):
        trace = _decide(space, tile, n_terms, n_tile_jobs(workload))
        if trace is not None:
            yield trace


def pays(workload: Workload, product: Product) -> bool:
    """Return whether prefetches are estimated to save more than they cost."""
    if product.has_window or math.prod(product.extents[:-1]) > _MAX_ROWS:
        return False
    near = _near(product.operands)
    tiles = _tiles(product.extents, near, product.registers)
    cycles = math.inf
    if tiles:
        cycles = tiling_cycles(tiles[0], product.extents, near, product.registers)
    return cycles <= _MAX_CYCLES * direct.cycles_per_term(workload, product)


def _tiles(
    extents: Sequence[int], near: Sequence[Operand], registers: Registers
) -> list[list[int]]:
    return [
        tile
        for tile in register_tiles(extents, near, registers)
        if n_vector_steps(tile[-1], registers.lanes) == 1
    ]


def _near(operands: Sequence[Operand]) -> list[Operand]:
    """Return operands as if the first cache held them."""
    return [Operand(each.axes, each.group, 0) for each in operands]


def _decide(space: Schedule, tile: Sequence[int], n_terms: int, n_jobs: int) -> Trace | None:
    """Return a trace; None if each job would have a single tile of rows."""
    *spatial, (columns, n_columns) = tiles_of(space, SPATIAL)
    *rows, width = tile
    n_panels = n_columns // width
    n_bytes = math.prod(extent for _, extent in spatial) * width * _ELEMENT_BYTES
    n_parts = max(math.ceil(n_bytes / _MAX_BYTES), math.ceil(n_jobs / n_panels))
    trace = space.trace.with_decision(columns, [n_panels, 1, 1, width], True)
    n_tiles_each = 1
    for (split, extent), size in zip(spatial, rows, strict=True):
        n_tiles = extent // size
        parts = min(each for each in divisors(n_tiles, n_tiles) if each >= min(n_parts, n_tiles))
        n_parts = math.ceil(n_parts / parts)
        n_tiles_each *= n_tiles // parts
        trace = trace.with_decision(split, [1, parts, n_tiles // parts, size], True)
    if n_tiles_each == 1:
        return None
    *others, (last, n_reduced) = tiles_of(space, REDUCTION)
    for split, extent in others:
        trace = trace.with_decision(split, [extent, 1], True)
    size = largest_divisor(n_reduced, n_terms)
    trace = trace.with_decision(last, [n_reduced // size, size], True)
    for each in space.trace.insts:
        if each.kind.name == "SampleCategorical":
            trace = trace.with_decision(each, _UNROLL_CHOICE, True)
    return trace
