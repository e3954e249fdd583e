"""Schedules that are computed, not searched: for the subgraphs that have no record.

For a convolution or product, TVM's rules describe a space of schedules, and its decisions follow
here from shapes and target: the innermost tile fills the vector registers with sums, all of the
reduction runs inside it, and the outer loops are cut into a few parallel jobs for each core. All
else is scheduled by rows. The result is a trace like any other.
"""

import math
from collections.abc import Callable, Sequence

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.s_tir.schedule import Instruction, Trace
from tvm.target import Target

from tuner.engines.relax import traces, workloads
from tuner.engines.relax.operands import Operand, operands_of
from tuner.engines.relax.padded_products import padded_tile, schedule_padded
from tuner.engines.relax.register_tiles import (
    Registers,
    cycles_of,
    largest_divisor,
    register_tile,
    registers_of,
)
from tuner.engines.relax.row_schedule import schedule_rows

# Levels into which TVM's rules split the loops of a convolution or product.
_SPATIAL, _REDUCTION = 4, 2
_JOBS_PER_CORE = 4
# Smaller kernels end before a second core has begun: about 10 us.
_MIN_PARALLEL_FLOP, _MIN_PARALLEL_BYTES = 5e5, 2**18
# Reduced elements between two rounds of the outer loops of a reduction.
_MAX_REDUCTION_TILE = 16
# Bytes of an operand that stay in the private cache of a core between two uses.
_L2_BYTES = 2**19
# Cycles of a padded product, over those without padding, from which the copies are worth it.
_MAX_PADDED = 0.7
_MIN_VECTOR = 4
# Index of the deepest unrolling among TVM's choices of 0, 16, 64 and 512 statements.
_UNROLL = 2


def compute_trace(
    module: tvm.IRModule, target: Target, spaces: Sequence[Schedule] | None = None
) -> str:
    """Return the decisions for a workload in the JSON of a trace; empty if no rule fits it.

    Args:
        module: Unscheduled workload.
        target: Target for a CPU.
        spaces: Its design spaces, if they were generated before.
    """
    try:
        if spaces is None:
            spaces = traces.design_spaces(module, target, PostOrderApply())
        return traces.dump(_decide(module, target, spaces))
    except (ScheduleError, RuntimeError, ValueError):  # TVM's, for structures and shapes
        return ""


def _decide(module: tvm.IRModule, target: Target, spaces: Sequence[Schedule]) -> Trace:
    flop, n_bytes = workloads.flop_of(module), _n_bytes(module)
    is_small = flop < _MIN_PARALLEL_FLOP and n_bytes < _MIN_PARALLEL_BYTES
    n_jobs = 1 if is_small else _JOBS_PER_CORE * int(target.attrs.get("num-cores", 1))
    tiled = [space for space in spaces if _tiles(space, _SPATIAL)]
    if tiled:
        # The second space adds the epilogue to each tile while its sums are in registers.
        space = tiled[min(1, len(tiled) - 1)]
        padded = _pad(module, space, registers_of(target), n_jobs)
        return padded or _decide_tiles(space, registers_of(target), operands_of(module), n_jobs)
    schedule = Schedule(module)
    schedule_rows(schedule, n_jobs)
    return schedule.trace


def _pad(module: tvm.IRModule, space: Schedule, registers: Registers, n_jobs: int) -> Trace | None:
    """Return the trace of a padded product where that is faster than tiles that divide it."""
    operands = operands_of(module)
    extents = [extent for _, extent in _tiles(space, _SPATIAL)]
    if len(extents) < 2 or any(operand.group for operand in operands):
        return None
    n_terms = math.prod(extent for _, extent in _tiles(space, _REDUCTION))
    exact = register_tile(extents, operands, registers)
    n_tiles = math.prod(extents) / math.prod(exact)
    cycles = n_tiles * n_terms * cycles_of(exact, operands, registers)
    if exact[-1] % _MIN_VECTOR:
        cycles *= registers.lanes  # LLVM makes scalars of the vectors
    tile, padded_cycles = padded_tile(extents, n_terms, operands, registers)
    if padded_cycles > _MAX_PADDED * cycles:
        return None
    schedule = Schedule(module)
    try:
        schedule_padded(schedule, tile, registers.lanes, n_jobs)
    except (ScheduleError, RuntimeError, ValueError):  # convolutions, for example
        return None
    return schedule.trace


def _n_bytes(module: tvm.IRModule) -> int:
    """Return the bytes of all inputs and outputs."""
    return sum(
        math.prod(int(size) for size in param.shape) * tvm.DataType(param.dtype).bits // 8
        for param in module["main"].params
    )


def _decide_tiles(
    space: Schedule, registers: Registers, operands: list[Operand], n_jobs: int
) -> Trace:
    """Return the trace of a space with the tiles of every loop decided."""
    trace = space.trace
    spatial, reductions = _tiles(space, _SPATIAL), _tiles(space, _REDUCTION)
    inner = register_tile([extent for _, extent in spatial], operands, registers)
    left = [extent // size for (_, extent), size in zip(spatial, inner, strict=True)]
    outer = _parallel_tile(left, n_jobs, columns_first=_is_faster_by_columns(left, operands))
    for (split, _), jobs, rest, size in zip(spatial, outer, left, inner, strict=True):
        trace = trace.with_decision(split, [jobs, rest // jobs, 1, size], True)
    for number, (split, extent) in enumerate(reductions, 1):
        most = _MAX_REDUCTION_TILE if number == len(reductions) else extent
        size = largest_divisor(extent, most)
        trace = trace.with_decision(split, [extent // size, size], True)
    for choice in space.trace.insts:
        if choice.kind.name == "SampleCategorical":
            trace = trace.with_decision(choice, _UNROLL, True)
    return trace


def _parallel_tile(extents: list[int], n_jobs: int, *, columns_first: bool) -> list[int]:
    """Return the outermost tile: as many parallel jobs as wanted, from the first axes.

    Args:
        extents: Numbers of register tiles on each axis.
        n_jobs: Parallel jobs.
        columns_first: True to have all tiles of one column follow each other.
    """
    tile = [1] * len(extents)
    if columns_first:
        *extents, tile[-1] = extents
        n_jobs = math.ceil(n_jobs / tile[-1])
    for axis, extent in enumerate(extents):
        tile[axis] = _divisor_from(extent, n_jobs)
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


def _divisor_from(number: int, least: int) -> int:
    """Return the smallest divisor from a limit on, or else the number."""
    return next((d for d in range(max(least, 1), number) if number % d == 0), number)


def _tiles(space: Schedule, n_levels: int) -> list[tuple[Instruction, int]]:
    """Return the splits into a number of levels with the extents of their loops."""
    return [
        (instruction, math.prod(int(size) for size in decision))
        for instruction, decision in space.trace.decisions.items()
        if instruction.kind.name == "SamplePerfectTile" and len(decision) == n_levels
    ]
