"""Schedules that are computed, not searched: for the subgraphs that have no record.

For a convolution or product, TVM's rules describe a space of schedules, and its decisions follow
here from shapes and target: the innermost tile fills the vector registers with sums, all of the
reduction runs inside it, and the outer loops are cut into a few parallel jobs for each core. All
else is scheduled by rows. The result is a trace like any other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.s_tir.schedule import Instruction, Trace
from tvm.target import Target

from tuner.engines.relax import traces, workloads
from tuner.engines.relax.row_schedule import largest_divisor, schedule_rows

# Levels into which TVM's rules split the loops of a convolution or product.
_SPATIAL, _REDUCTION = 4, 2
_JOBS_PER_CORE = 4
# Smaller kernels end before a second core has begun: about 10 us.
_MIN_PARALLEL_FLOP, _MIN_PARALLEL_BYTES = 5e5, 2**18
# Reduced elements between two rounds of the outer loops of a reduction.
_MAX_REDUCTION_TILE = 16
# Registers left for operands, of those that hold the sums of a tile.
_N_OPERAND_REGISTERS = 8
# Cycles from a product to the next one that adds to the same sum.
_LATENCY = 4
# Longest loop over an axis that no vector divides.
_MAX_LOOP = 1024
# Index of the deepest unrolling among TVM's choices of 0, 16, 64 and 512 statements.
_UNROLL = 2


@dataclass(frozen=True)
class _Registers:
    """Vector registers of a CPU: their number, and float32 lanes of each."""

    n: int
    lanes: int


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
        return _decide_tiles(tiled[min(1, len(tiled) - 1)], _registers(target), n_jobs)
    schedule = Schedule(module)
    schedule_rows(schedule, n_jobs)
    return schedule.trace


def _n_bytes(module: tvm.IRModule) -> int:
    """Return the bytes of all inputs and outputs."""
    return sum(
        math.prod(int(size) for size in param.shape) * tvm.DataType(param.dtype).bits // 8
        for param in module["main"].params
    )


def _decide_tiles(space: Schedule, registers: _Registers, n_jobs: int) -> Trace:
    """Return the trace of a space with the tiles of every loop decided."""
    trace = space.trace
    spatial, reductions = _tiles(space, _SPATIAL), _tiles(space, _REDUCTION)
    inner = _register_tile([extent for _, extent in spatial], registers)
    left = [extent // size for (_, extent), size in zip(spatial, inner, strict=True)]
    outer = _parallel_tile(left, n_jobs)
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


def _register_tile(extents: list[int], registers: _Registers) -> list[int]:
    """Return the innermost tile: vectors of the last axis, rows of the others.

    A step of the reduction loads one number a row and the vectors, and adds every product of the
    two. Few sums wait for each other, many do not fit the registers.
    """
    *others, last = extents
    n_sums = registers.n - _N_OPERAND_REGISTERS
    tiles = [
        [*_rows(others, n_sums // math.ceil(width / registers.lanes)), width]
        for width in _widths(last)
    ]
    return max(tiles, key=lambda tile: _throughput(tile, registers))


def _widths(extent: int) -> list[int]:
    """Return the powers of two that divide the last axis, up to the longest vectorised loop.

    An odd axis stays whole, so that LLVM makes vectors of its loop and handles the rest.
    """
    widths = [width for width in (4, 8, 16, 32, 64) if extent % width == 0]
    return widths or [largest_divisor(extent, _MAX_LOOP)]


def _rows(extents: list[int], n_rows: int) -> list[int]:
    rows: list[int] = []
    for extent in reversed(extents):
        rows.append(largest_divisor(extent, n_rows))
        n_rows //= rows[-1]
    return rows[::-1]


def _throughput(tile: list[int], registers: _Registers) -> float:
    """Estimate the useful products a cycle of a register tile."""
    *rows, width = tile
    n_rows, vectors = math.prod(rows), math.ceil(width / registers.lanes)
    n_products = n_rows * vectors
    cycles = max(n_products / 2, (n_rows + vectors) / 2, _LATENCY)
    return n_rows * width / cycles


def _parallel_tile(extents: list[int], n_jobs: int) -> list[int]:
    """Return the outermost tile: as many parallel jobs as wanted, from the first axes."""
    tile = []
    for extent in extents:
        tile.append(_divisor_from(extent, n_jobs))
        n_jobs = math.ceil(n_jobs / tile[-1])
    return tile


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


@lru_cache(maxsize=8)
def _registers(target: Target) -> _Registers:
    def has(feature: str) -> bool:
        return bool(tvm.target.codegen.llvm_cpu_has_features(feature, target))

    if not any(word in str(target.attrs.get("mtriple", "x86_64")) for word in ("x86", "amd64")):
        return _Registers(32, 4)
    if has("avx512f"):
        return _Registers(32, 16)
    return _Registers(16, 8 if has("avx2") else 4)
