"""Schedules that are computed, not searched: for the subgraphs that have no record.

For a convolution or product, TVM's rules describe a space of schedules, and its decisions follow
here from shapes and target: the innermost tile fills the vector registers with sums, all of the
reduction runs inside it, and the outer loops are cut into a few parallel jobs for each core. All
else is scheduled by rows. The result is a trace like any other.
"""

import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.s_tir.schedule import Trace
from tvm.target import Target

from tuner.engines.relax import step_loops, traces, workloads
from tuner.engines.relax.dot_instructions import dot_instruction
from tuner.engines.relax.schedules.cpu import prefetch
from tuner.engines.relax.schedules.cpu.attention import (
    attention_tiles,
    find_attention,
    schedule_attention,
)
from tuner.engines.relax.schedules.cpu.direct import (
    JOBS_PER_CORE,
    DirectTile,
    direct_tiles,
    schedule_direct,
    tiling_cycles,
)
from tuner.engines.relax.schedules.cpu.dots import (
    dot_tiles,
    find_dot_product,
    schedule_dots,
)
from tuner.engines.relax.schedules.cpu.grouped import (
    find_grouped,
    grouped_tiles,
    schedule_grouped,
)
from tuner.engines.relax.schedules.cpu.lanes import find_lane_product, lane_tiles, schedule_lanes
from tuner.engines.relax.schedules.cpu.operands import Operand, operands_of
from tuner.engines.relax.schedules.cpu.packed_weights import (
    find_weight_product,
    schedule_weights,
    weight_tiles,
)
from tuner.engines.relax.schedules.cpu.padded import padded_tiles, schedule_padded
from tuner.engines.relax.schedules.cpu.ragged import ragged_tiles, schedule_ragged
from tuner.engines.relax.schedules.cpu.register_tiles import Registers, product_cycles, registers_of
from tuner.engines.relax.schedules.cpu.rows import schedule_rows
from tuner.engines.relax.schedules.cpu.streamed import streamed_cycles, streamed_traces
from tuner.engines.relax.schedules.cpu.tiled import REDUCTION, SPATIAL, tile_traces, tiles_of

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

# Smaller kernels end before a second core has begun: about 10 us.
_MIN_PARALLEL_FLOP, _MIN_PARALLEL_BYTES = 1e6, 2**18
# Cycles of a padded product, over those without padding, from which the copies are worth it.
_MAX_PADDED = 0.7
# Cycles with vectors along the reduction, over those of other tiles, below which these are used:
# many columns read all weights again for each few rows.
_MAX_LANES = 0.5
_MATRIX = 2
# Rows above which fetching weights ahead costs more than it saves: below 100 rows it is 4 % faster,
# from 300 on 7 % slower (docs/decisions/0073).
_MAX_STREAMED_ROWS = 128
# Estimated cycles of a schedule with prefetches over those of a direct one, at most.
_MAX_STREAMED = 1.1
# Errors of TVM, for structures and shapes that a rule does not fit.
_MISFITS = (ScheduleError, RuntimeError, ValueError)
# More than the register tiles of any product.
_ALL_TILES = 2**40


def compute_trace(
    module: tvm.IRModule, target: Target, spaces: Sequence[Schedule] | None = None
) -> str:
    """Return the decisions for a workload in the JSON of a trace; empty if no rule fits it.

    Args:
        module: Unscheduled workload.
        target: Target for a CPU.
        spaces: Its design spaces, if they were generated before.
    """
    closed = next(closed_traces(module, target), None)
    if closed is not None:
        return traces.dump(closed)
    if spaces is None:
        try:
            spaces = traces.design_spaces(module, target, PostOrderApply())
        except _MISFITS:
            return ""
    best = next(ranked_traces(module, target, spaces), None)
    return "" if best is None else traces.dump(best)


def ranked_traces(
    module: tvm.IRModule, target: Target, spaces: Sequence[Schedule]
) -> Iterator[Trace]:
    """Yield the schedules by rule of a workload, the one that is estimated to be fastest first.

    Those of a product differ in their tiles; others have one schedule, or none.
    """
    return _guarded(_decide(module, target, spaces))


def closed_traces(module: tvm.IRModule, target: Target) -> Iterator[Trace]:
    """Yield the traces of a workload that has no schedules but those by rule; none for others.

    These are products of packed weights and attention; the likeliest comes first.
    """
    schedule = Schedule(module)
    dots = find_dot_product(schedule) if dot_instruction(target) else None
    product = find_weight_product(schedule) if dots is None else None
    rules: list[Callable[[Schedule], None]] = []
    if dots is not None:
        n_jobs = _n_jobs(module, target)
        rules = [partial(schedule_dots, n_jobs=n_jobs, tile=tile) for tile in dot_tiles(dots)]
    elif product is not None:
        n_jobs = _n_jobs(module, target)
        tiles = weight_tiles(product)
        rules = [partial(schedule_weights, n_jobs=n_jobs, tile=tile) for tile in tiles]
    else:
        rules = _attention_rules(module, target, schedule)
    yield from _attempts(module, rules)


def _attention_rules(
    module: tvm.IRModule, target: Target, schedule: Schedule
) -> list[Callable[[Schedule], None]]:
    attention = find_attention(schedule)
    if attention is None:
        return []
    n_cores = max(_n_jobs(module, target) // JOBS_PER_CORE, 1)
    registers = registers_of(target)
    return [
        partial(schedule_attention, tile=tile, lanes=registers.lanes, n_cores=n_cores)
        for tile in attention_tiles(attention, registers, n_cores)
    ]


def _n_jobs(module: tvm.IRModule, target: Target) -> int:
    """Return the parallel jobs to cut a workload into; 1 for none."""
    flop, n_bytes = workloads.flop_of(module), workloads.n_bytes_of(module)
    is_small = step_loops.is_serial(module) or (
        flop < _MIN_PARALLEL_FLOP and n_bytes < _MIN_PARALLEL_BYTES
    )
    return 1 if is_small else JOBS_PER_CORE * int(target.attrs.get("num-cores", 1))


def _decide(module: tvm.IRModule, target: Target, spaces: Sequence[Schedule]) -> Iterator[Trace]:
    n_jobs = _n_jobs(module, target)
    tiled = [space for space in spaces if tiles_of(space, SPATIAL)]
    if tiled:
        yield from _decide_products(module, tiled, registers_of(target), n_jobs)
        return
    schedule = Schedule(module)
    schedule_rows(schedule, n_jobs)
    yield schedule.trace


def _decide_products(
    module: tvm.IRModule, spaces: Sequence[Schedule], registers: Registers, n_jobs: int
) -> Iterator[Trace]:
    """Yield traces of a product or convolution, with the fastest kind of tiles."""
    operands = operands_of(module)
    extents = [extent for _, extent in tiles_of(spaces[0], SPATIAL)]
    *window, n_inputs = (extent for _, extent in tiles_of(spaces[0], REDUCTION))
    n_terms = math.prod(window) * n_inputs
    cycles = n_terms * product_cycles(extents, operands, registers)
    has_window = math.prod(window) > 1
    tiles = list(
        _guarded(_direct_tiles(module, extents, operands, registers, n_jobs, has_window=has_window))
    )
    direct_cycles = _direct_cycles(tiles, extents, operands, registers)
    kinds = [_decide_lanes(module, registers, n_jobs, min(cycles, n_terms * direct_cycles))]
    if len(extents) >= _MATRIX and not any(operand.group for operand in operands):
        padded = padded_tiles(extents, n_terms, operands, registers)
        if padded[0][1] < _MAX_PADDED * cycles:
            ragged = ragged_tiles(extents, n_terms, operands, registers, n_jobs // JOBS_PER_CORE)
            uneven = (
                _decide_uneven(module, schedule_ragged, ragged, registers, n_jobs),
                _decide_uneven(module, schedule_padded, padded, registers, n_jobs),
                _decide_direct(module, tiles),
            )
            kinds.insert(0, _in_turns(*uneven))
            kinds.insert(0, _decide_lanes(module, registers, n_jobs, padded[0][1]))
    # Without threads, the sums of one tile after the other stay in registers.
    n_tiled = _ALL_TILES if step_loops.is_serial(module) else n_jobs
    # Prefetches only pay off in some programs of a space; a search starts from these.
    marked = prefetch.spaces_with_prefetch(module, spaces)
    streamed = streamed_traces(marked, registers, operands, n_tiled)
    direct = _decide_direct(module, tiles)
    grouped = _decide_grouped(module, spaces[0], operands, registers, n_jobs)
    tiled = tile_traces(spaces, registers, operands, n_tiled)
    streams = (
        not has_window
        and math.prod(extents[:-1]) <= _MAX_STREAMED_ROWS
        and streamed_cycles(extents, operands, registers) <= _MAX_STREAMED * direct_cycles
    )
    products = (streamed, direct, tiled) if streams else (direct, tiled, streamed)
    # A panel of a grouped convolution reads its weights once.
    kinds.append(_in_turns(grouped, *products))
    for kind in map(_guarded, kinds):
        best = next(kind, None)
        if best is not None:
            yield best
            yield from kind
            return


def _decide_lanes(
    module: tvm.IRModule, registers: Registers, n_jobs: int, max_cycles: float
) -> Iterator[Trace]:
    """Yield traces with vectors along the reduction, if they take far less than a limit."""
    product = find_lane_product(Schedule(module))
    ranked = lane_tiles(product, registers) if product else ()
    fast = itertools.takewhile(lambda each: each[1] <= _MAX_LANES * max_cycles, ranked)
    yield from _attempts(module, (partial(schedule_lanes, tile=t, n_jobs=n_jobs) for t, _ in fast))


def _direct_tiles(
    module: tvm.IRModule,
    extents: Sequence[int],
    operands: Sequence[Operand],
    registers: Registers,
    n_jobs: int,
    *,
    has_window: bool,
) -> Iterator[DirectTile]:
    """Yield register tiles of rows by vectors, for numbers that whole vectors share."""
    columns = len(extents) - 1
    are_shared = not any(each.group for each in operands) and not all(
        columns in each.axes for each in operands
    )
    if are_shared and not step_loops.is_serial(module):
        yield from direct_tiles(extents, operands, registers, n_jobs, has_window=has_window)


def _decide_direct(module: tvm.IRModule, tiles: Iterable[DirectTile]) -> Iterator[Trace]:
    return _attempts(module, (partial(schedule_direct, tile=tile) for tile in tiles))


def _direct_cycles(
    tiles: Sequence[DirectTile],
    extents: Sequence[int],
    operands: Sequence[Operand],
    registers: Registers,
) -> float:
    """Return the cycles of direct schedules for one step of the reduction; infinity for none."""
    if not tiles or tiles[0].inner[-1] < registers.lanes:
        return math.inf
    return tiling_cycles(tiles[0].inner, extents, operands, registers)


def _decide_grouped(
    module: tvm.IRModule,
    space: Schedule,
    operands: Sequence[Operand],
    registers: Registers,
    n_jobs: int,
) -> Iterator[Trace]:
    """Yield traces of a depthwise or grouped convolution, whose window lies inside its tiles."""
    extents, reduced = (
        [extent for _, extent in tiles_of(space, n_levels)] for n_levels in (SPATIAL, REDUCTION)
    )
    convolution = find_grouped(extents, reduced, operands)
    if convolution is None or step_loops.is_serial(module):
        return
    n_cores = max(n_jobs // JOBS_PER_CORE, 1)
    apply = partial(schedule_grouped, convolution=convolution)
    tiles = grouped_tiles(convolution, registers, n_jobs, n_cores)
    yield from _attempts(module, (partial(apply, tile=tile) for tile in tiles))


def _decide_uneven(
    module: tvm.IRModule,
    apply: Callable[..., None],
    tiles: Sequence[tuple[Sequence[int], float]],
    registers: Registers,
    n_jobs: int,
) -> Iterator[Trace]:
    apply = partial(apply, lanes=registers.lanes, n_jobs=n_jobs)
    yield from _attempts(module, (partial(apply, tile=tile) for tile, _ in tiles))


def _in_turns(*kinds: Iterable[Trace]) -> Iterator[Trace]:
    """Yield the traces of several kinds in turns."""
    turns = itertools.zip_longest(*map(_guarded, kinds))
    return (trace for turn in turns for trace in turn if trace is not None)


def _guarded(kind: Iterable[_T]) -> Iterator[_T]:
    """Return the traces or tiles of one kind; a failure ends this kind alone."""
    return iter(partial(_next, iter(kind)), None)


def _next(kind: Iterator[_T]) -> _T | None:
    """Return the next trace or tile; None behind the last one and after a failure.

    Generators do not yield inside of such a try: when the interpreter ends, those that are left
    would look up the errors, which are gone.
    """
    try:
        return next(kind, None)
    except _MISFITS:
        return None
    except Exception:
        _LOG.exception("a kind of schedules by rule fails")
        return None


def _attempts(module: tvm.IRModule, rules: Iterable[Callable[[Schedule], None]]) -> Iterator[Trace]:
    """Yield the traces of rules that differ in their tiles, up to one that does not fit."""
    for rule in rules:
        try:
            trace = _attempt(module, rule)
        except Exception:
            _LOG.exception("a schedule by rule fails")
            continue
        if trace is None:
            return  # the structure does not fit, whatever the tile
        yield trace


def _attempt(module: tvm.IRModule, apply: Callable[[Schedule], None]) -> Trace | None:
    """Return the trace of a rule; None if it does not fit the workload."""
    schedule = Schedule(module)
    try:
        apply(schedule)
    except _MISFITS:
        return None
    return schedule.trace
