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
from tuner.engines.relax.lane_products import find_lane_product, lane_tile, schedule_lanes
from tuner.engines.relax.operands import Operand, operands_of
from tuner.engines.relax.padded_products import padded_tile, schedule_padded
from tuner.engines.relax.register_tiles import (
    Registers,
    largest_divisor,
    product_cycles,
    register_tile,
    registers_of,
)
from tuner.engines.relax.row_schedule import schedule_rows

# Levels into which TVM's rules split the loops of a convolution or product.
_SPATIAL, _REDUCTION = 4, 2
_JOBS_PER_CORE = 4
# Smaller kernels end before a second core has begun: about 10 us.
_MIN_PARALLEL_FLOP, _MIN_PARALLEL_BYTES = 1e6, 2**18
# Reduced elements between two rounds of the outer loops of a reduction.
_MAX_REDUCTION_TILE = 16
# Bytes of an operand that stay in the private cache of a core between two uses.
_L2_BYTES = 2**19
# Cycles of a padded product, over those without padding, from which the copies are worth it.
_MAX_PADDED = 0.7
# Cycles with vectors along the reduction, over those of other tiles, below which these are used:
# many columns read all weights again for each few rows.
_MAX_LANES = 0.5
_MATRIX = 2
# Widths of vectors that LLVM does not split into single numbers.
_WHOLE_VECTORS = (4, 8, 16, 32, 64)
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
        registers = registers_of(target)
        return _decide_products(module, space, registers, n_jobs)
    schedule = Schedule(module)
    schedule_rows(schedule, n_jobs)
    return schedule.trace


def _decide_products(
    module: tvm.IRModule, space: Schedule, registers: Registers, n_jobs: int
) -> Trace:
    """Return the trace of a product or convolution: the fastest of three kinds of tiles."""
    operands = operands_of(module)
    extents = [extent for _, extent in _tiles(space, _SPATIAL)]
    n_terms = math.prod(extent for _, extent in _tiles(space, _REDUCTION))
    cycles = n_terms * product_cycles(extents, operands, registers)
    is_matrix = len(extents) >= _MATRIX and not any(operand.group for operand in operands)
    if is_matrix:
        tile, padded_cycles = padded_tile(extents, n_terms, operands, registers)
        if padded_cycles < _MAX_PADDED * cycles:
            lanes = _decide_lanes(module, registers, n_jobs, padded_cycles)
            padded = lanes or _attempt(
                module, lambda each: schedule_padded(each, tile, registers.lanes, n_jobs)
            )
            if padded is not None:
                return padded
    lanes = _decide_lanes(module, registers, n_jobs, cycles)
    return lanes or _decide_tiles(space, registers, operands, n_jobs)


def _decide_lanes(
    module: tvm.IRModule, registers: Registers, n_jobs: int, max_cycles: float
) -> Trace | None:
    """Return the trace with vectors along the reduction, if it takes far less than a limit."""
    product = find_lane_product(Schedule(module))
    choice = None if product is None else lane_tile(product, registers)
    if choice is None or choice[1] > _MAX_LANES * max_cycles:
        return None
    return _attempt(module, lambda each: schedule_lanes(each, choice[0], n_jobs))


def _attempt(module: tvm.IRModule, apply: Callable[[Schedule], None]) -> Trace | None:
    """Return the trace of a rule; None if it does not fit the workload."""
    schedule = Schedule(module)
    try:
        apply(schedule)
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
    n_vectors = _n_vector_steps(inner[-1], registers.lanes)
    for (split, _), jobs, rest, size in zip(spatial, outer, left, inner, strict=True):
        middle = n_vectors if split.same_as(spatial[-1][0]) else 1
        trace = trace.with_decision(split, [jobs, rest // jobs, middle, size // middle], True)
    for number, (split, extent) in enumerate(reductions, 1):
        most = _MAX_REDUCTION_TILE if number == len(reductions) else extent
        # The reduction runs outside of a loop of vectors.
        size = largest_divisor(extent, most) if n_vectors == 1 else 1
        trace = trace.with_decision(split, [extent // size, size], True)
    for choice in space.trace.insts:
        if choice.kind.name == "SampleCategorical":
            trace = trace.with_decision(choice, _UNROLL, True)
    return trace


def _n_vector_steps(width: int, lanes: int) -> int:
    """Return the number of vectors that a loop goes through; 1 if LLVM takes the width at once.

    It splits vectors of 24 or 48 numbers into single ones.
    """
    if width % lanes or (width in _WHOLE_VECTORS):
        return 1
    return width // lanes


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
