"""Schedules by rule for convolutions and products: decisions in the tiled spaces of TVM's rules.

The innermost tile fills the vector registers with sums, all of the reduction runs inside it, and
the outer loops are cut into parallel jobs.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace

from tuner.engines.relax.schedules.base import Workload
from tuner.engines.relax.schedules.cpu.primitives.operands import Operand
from tuner.engines.relax.schedules.cpu.primitives.products import (
    REDUCTION,
    SPATIAL,
    Product,
    tiles_of,
)
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import (
    Registers,
    cycles_of,
    largest_divisor,
    n_vector_steps,
    register_tiles,
)

# Reduced elements between two rounds of the outer loops of a reduction, the likeliest first.
_REDUCTION_TILES = (16, 4, 64, 2**30)
# Indices among TVM's choices of 0, 16, 64 and 512 unrolled statements, likewise.
_UNROLL_CHOICES = (2, 3, 1)
# Among TVM's locations of padding: in the reduction, where each step would test the bounds, and in
# front of the product.
_INLINED, _AT_ROOT = -2, -1
# Bytes of an operand that stay in the private cache of a core between two uses.
_L2_BYTES = 2**19
# Register tiles that are tried, and the slow-down that another choice than the first of a decision
# is expected to bring.
_MAX_TILES, _SLOW_DOWN = 10, 1.04
# More than the register tiles of any product.
_ALL_TILES = 2**40


@dataclass(frozen=True)
class _Choice:
    """Decisions of one schedule.

    Attributes:
        space: Index of the space.
        inner: Register tile.
        reduction: Most reduced elements between two rounds of the outer loops of a reduction.
        unroll: Index of the choice of unrolled statements.
        by_traffic: True to order the jobs so that fewer bytes come from the shared cache.
    """

    space: int
    inner: Sequence[int]
    reduction: int
    unroll: int
    by_traffic: bool


def ranked(workload: Workload, product: Product) -> Iterator[Trace]:
    """Rank decisions in TVM's spaces; see :class:`ScheduleRule`."""
    spaces, registers, operands = product.spaces, product.registers, product.operands
    n_jobs = n_tile_jobs(workload)
    extents = [extent for _, extent in tiles_of(spaces[0], SPATIAL)]
    inner = register_tiles(extents, operands, registers)[:_MAX_TILES]
    fastest = _cycles_per_sum(inner[0], operands, registers)
    # The second space adds the epilogue to each tile while its sums are in registers.
    order = sorted(range(len(spaces)), key=lambda index: index != min(1, len(spaces) - 1))
    ranked = []
    for decisions in itertools.product(
        enumerate(inner),
        enumerate(order),
        enumerate(_REDUCTION_TILES),
        enumerate(_UNROLL_CHOICES),
        enumerate((True, False)),
    ):
        (_, tile), *_ = decisions
        n_other = sum(number > 0 for number, _ in decisions)
        cycles = _cycles_per_sum(tile, operands, registers) / fastest * _SLOW_DOWN**n_other
        _, (_, space), (_, reduction), (_, unroll), (_, by_traffic) = decisions
        ranked.append((cycles, _Choice(space, tile, reduction, unroll, by_traffic)))
    for _, choice in sorted(ranked, key=lambda each: each[0]):
        yield _decide(spaces[choice.space], choice, registers, operands, n_jobs)


def n_tile_jobs(workload: Workload) -> int:
    """Return the jobs of tiles: each tile without threads, so that its sums stay in registers."""
    return _ALL_TILES if workload.is_serial else workload.n_jobs


def _cycles_per_sum(
    tile: Sequence[int], operands: Sequence[Operand], registers: Registers
) -> float:
    return cycles_of(tile, operands, registers) / math.prod(tile)


def _decide(
    space: Schedule, choice: _Choice, registers: Registers, operands: list[Operand], n_jobs: int
) -> Trace:
    trace = space.trace
    spatial, reductions = tiles_of(space, SPATIAL), tiles_of(space, REDUCTION)
    left = [extent // size for (_, extent), size in zip(spatial, choice.inner, strict=True)]
    columns_first = _is_faster_by_columns(left, operands) is choice.by_traffic
    outer = _parallel_tile(left, n_jobs, columns_first=columns_first)
    n_vectors = n_vector_steps(choice.inner[-1], registers.lanes)
    for (split, _), jobs, rest, size in zip(spatial, outer, left, choice.inner, strict=True):
        middle = n_vectors if split.same_as(spatial[-1][0]) else 1
        trace = trace.with_decision(split, [jobs, rest // jobs, middle, size // middle], True)
    for number, (split, extent) in enumerate(reductions, 1):
        most = choice.reduction if number == len(reductions) else extent
        # The reduction runs outside of a loop of vectors.
        size = largest_divisor(extent, most) if n_vectors == 1 else 1
        trace = trace.with_decision(split, [extent // size, size], True)
    for each in space.trace.insts:
        if each.kind.name == "SampleCategorical":
            trace = trace.with_decision(each, choice.unroll, True)
        elif each.kind.name == "SampleComputeLocation" and int(trace.decisions[each]) == _INLINED:
            trace = trace.with_decision(each, _AT_ROOT, True)
    return trace


def _parallel_tile(extents: list[int], n_jobs: int, *, columns_first: bool) -> list[int]:
    """Return the outermost tile: as many parallel jobs as wanted, from the first axes.

    Args:
        extents: Numbers of register tiles on each axis.
        columns_first: True to have all tiles of one column follow each other.
    """
    tile = [1] * len(extents)
    if columns_first:
        *extents, tile[-1] = extents
        n_jobs = math.ceil(n_jobs / tile[-1])
    for axis, extent in enumerate(extents):
        tile[axis] = next((d for d in range(max(n_jobs, 1), extent) if extent % d == 0), extent)
        n_jobs = math.ceil(n_jobs / tile[axis])
    return tile


def _is_faster_by_columns(n_tiles: list[int], operands: list[Operand]) -> bool:
    """Return whether fewer bytes come from the shared cache if the tiles of a column come first.

    What fits the private cache is read once; else each row of tiles reads all weights, or each
    column all numbers that weights multiply.
    """
    last = len(n_tiles) - 1
    shared = frozenset.intersection(*(operand.axes for operand in operands)) if operands else ()
    n_shared = math.prod(n_tiles[axis] for axis in shared)

    def bytes_read(repeated: Callable[[Operand], int]) -> float:
        return sum(
            operand.n_bytes * (repeated(operand) if operand.n_bytes / n_shared > _L2_BYTES else 1)
            for operand in operands
        )

    by_rows = bytes_read(
        lambda operand: math.prod(
            n for axis, n in enumerate(n_tiles[:last]) if axis not in operand.axes
        )
    )
    by_columns = bytes_read(lambda operand: 1 if last in operand.axes else n_tiles[last])
    return by_columns < by_rows
