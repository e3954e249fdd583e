"""Schedules by rule for kernels without reuse: elementwise, pooling, softmax, normalisation.

TVM's rules tile products and convolutions; of other kernels they leave the reductions scalar. Here
a nest of loops over rows computes everything that one output needs, and the cores share the rows.
Reductions over the last axis are loops that LLVM vectorises; of reductions over other axes, the
last axis moves inside. What several nests read, or what the rows of one would compute many times,
is a nest of its own.
"""

import itertools
import math
import sys
from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV, Trace

from tuner.engines.relax.codegen.cpu.vector_functions import FUNCTIONS
from tuner.engines.relax.schedules.base import Workload, attempts
from tuner.engines.relax.schedules.cpu.primitives.blocks import (
    REDUCTION,
    SPATIAL,
    axes_of,
    is_free_to_inline,
    is_movement,
    is_reduction,
    name_of,
    uses,
)
from tuner.engines.relax.schedules.cpu.primitives.products import tiled_spaces
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import largest_divisor

# Elements of the last axis that one step handles.
_MIN_VECTOR, _MAX_VECTOR = 8, 64
# Numbers of the widest register of any CPU.
_REGISTER = 16
# Iterations of a block inside a nest over the block alone: more is repeated work.
_MAX_REPETITION = 1.25
# Comparisons of an axis with the first element of a part of a concatenation.
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GE, tirx.GT)
# Comparisons, with the side of the number, of which the number begins a part: 24 <= x, x < 24.
_BEGINS = (("LE", "left"), ("LT", "right"), ("GE", "right"), ("GT", "left"))
# What makes neighbours of a result depend on numbers that lie apart, besides choices.
_SCATTERING = (tirx.FloorDiv, tirx.FloorMod)
# Parts that become loops of their own, at most.
_MAX_PARTS = 32


def find_rows(workload: Workload) -> bool | None:
    """Return True for what is not a product or convolution."""
    return None if tiled_spaces(workload) else True


def ranked(workload: Workload, _match: bool) -> Iterator[Trace]:
    """Return the only schedule by rows; see :class:`ScheduleRule`."""
    return attempts(workload, schedule_rows, [workload.n_jobs])


def schedule_rows(schedule: Schedule, n_jobs: int) -> None:
    """Schedule the only function of a module in place.

    Args:
        schedule: Schedule of an unscheduled workload.
        n_jobs: Parallel jobs to cut the rows into; 1 for none.

    Raises:
        ScheduleError: If the workload has another structure; the schedule is then half done.
    """
    blocks = [
        block
        for block in schedule.get_child_blocks(schedule.get_sblock("root"))
        if not _inline(schedule, block)
    ]
    nests = []
    while blocks:
        nests.append(blocks[-1])
        blocks = _schedule_nest(schedule, blocks, n_jobs)
    for last in nests:
        is_function = _is_function_of_neighbours(schedule.get(last).body)
        for loop in _cut_between_parts(schedule, last):
            _vectorise(schedule, loop, is_function=is_function)


def _schedule_nest(schedule: Schedule, blocks: list[SBlockRV], n_jobs: int) -> list[SBlockRV]:
    """Schedule the last block with all that it alone needs; return the blocks that are left."""
    *others, last = blocks
    producers = _only_producers(schedule, others, last)
    reductions = [block for block in (*producers, last) if is_reduction(schedule, block)]
    is_last_spatial = not any(_reduces_last(schedule, block) for block in reductions)
    rows = _rows(schedule, last, reductions, is_last_spatial=is_last_spatial)
    if not rows:
        _reduce_by_lanes(schedule, last)
        return others
    inside = [last]
    for block in reversed(producers):
        consumers = [name_of(schedule, each) for each in schedule.get_consumers(block)]
        names = {name_of(schedule, each) for each in inside}
        if names.issuperset(consumers) and _compute_at(schedule, block, rows[-1]):
            inside.append(block)
    if n_jobs > 1:
        parallelise(schedule, rows, n_jobs)
    if is_last_spatial:
        for block in inside:
            if is_reduction(schedule, block):
                n_reduced = len(axes_of(schedule, block, REDUCTION))
                loops = schedule.get_loops(block)
                reduced, spatial = loops[-n_reduced:], loops[-n_reduced - 1]
                schedule.reorder(*reduced, spatial)
                if int(schedule.get(spatial).extent) % _MIN_VECTOR == 0:
                    schedule.vectorize(spatial)
                schedule.decompose_reduction(block, reduced[0])
    names = {name_of(schedule, each) for each in inside}
    return [block for block in others if name_of(schedule, block) not in names]


def _reduce_by_lanes(schedule: Schedule, block: SBlockRV) -> None:
    """Compute one maximum or minimum from the results of neighbouring lanes.

    LLVM makes vectors of sums alone; NaN would tell for the others.
    """
    loops = schedule.get_loops(block)
    value = getattr(schedule.get(block).body, "value", None)
    if not loops or type(value).__name__ not in ("Max", "Min"):
        return
    lanes = math.gcd(_n_iterations(schedule, block), _MAX_VECTOR)
    if lanes < _MIN_VECTOR or len(axes_of(schedule, block, REDUCTION)) < len(loops):
        return
    _, inner = schedule.split(schedule.fuse(*loops), [None, lanes])
    partial = schedule.rfactor(inner, 0)
    *outer, lane = schedule.get_loops(partial)
    schedule.vectorize(lane)
    schedule.decompose_reduction(partial, outer[0])


def _only_producers(schedule: Schedule, blocks: list[SBlockRV], last: SBlockRV) -> list[SBlockRV]:
    """Return the blocks from which a block, and no other that is left, follows."""
    names, producers = {name_of(schedule, last)}, []
    for block in reversed(blocks):
        consumers = {name_of(schedule, each) for each in schedule.get_consumers(block)}
        if consumers and consumers <= names:
            names.add(name_of(schedule, block))
            producers.append(block)
    return producers[::-1]


def _compute_at(schedule: Schedule, block: SBlockRV, loop: LoopRV) -> bool:
    """Move a block into a loop where that repeats no work; return whether it did."""
    n_before = _n_iterations(schedule, block)
    attempt = schedule.copy()
    try:
        attempt.compute_at(block, loop, preserve_unit_loops=True)
    except ScheduleError:
        return False
    if _n_iterations(attempt, block) > _MAX_REPETITION * n_before:
        return False
    schedule.compute_at(block, loop, preserve_unit_loops=True)
    return True


def _n_iterations(schedule: Schedule, block: SBlockRV) -> int:
    """Return how often a block runs; more than any number where it is not constant."""
    extents = [schedule.get(loop).extent for loop in schedule.get_loops(block)]
    # Of a loop moved into others, the extent may depend on theirs.
    if not all(isinstance(extent, tvm.tirx.IntImm) for extent in extents):
        return sys.maxsize
    return math.prod(int(extent) for extent in extents)


def _inline(schedule: Schedule, block: SBlockRV) -> bool:
    """Inline a block into what follows where that repeats no work and hides no vectors."""
    if not (is_free_to_inline(schedule, block) or _is_free_in_reductions(schedule, block)):
        return False
    try:
        schedule.compute_inline(block)
    except ScheduleError:
        return False
    return True


def _is_free_in_reductions(schedule: Schedule, block: SBlockRV) -> bool:
    """Return whether reductions that follow can compute a block as vectors of its last axis.

    The border of a pooling is a condition on rows and columns then, and no copy of the image.
    """
    consumers = schedule.get_consumers(block)
    if is_reduction(schedule, block) or not consumers:
        return False
    if any(not is_reduction(schedule, each) or _reduces_last(schedule, each) for each in consumers):
        return False
    if not _has_plain_last_axis(schedule, block):
        return False
    if is_movement(schedule.get(block)):
        return True
    n_computed = _n_iterations(schedule, block)
    return sum(_n_iterations(schedule, each) for each in consumers) <= n_computed


def _has_plain_last_axis(schedule: Schedule, block: SBlockRV) -> bool:
    """Return whether neighbours of a result depend on neighbours, under the same conditions."""
    statement = schedule.get(block)
    axes = axes_of(schedule, block, SPATIAL)
    if not axes or int(axes[-1].dom.extent) < _MIN_VECTOR:
        return False
    last, is_plain = axes[-1].var, True

    def visit(condition: Any) -> None:
        nonlocal is_plain
        is_plain &= not uses(condition, last)

    def visit_call(call: Any) -> None:
        if getattr(call.op, "name", "").rpartition(".")[-1] == "if_then_else":
            visit(call.args[0])

    visits = [(ir.Call, visit_call), (tirx.Select, lambda node: visit(node.condition))]
    tvm_ffi.structural_walk(statement.body, visits)
    for region in statement.reads:
        *others, inner = [each.min for each in region.region] or [tvm.tirx.const(0)]
        is_plain &= not any(uses(each, last) for each in others)
        is_plain &= last.same_as(inner) or not uses(inner, last)
    return is_plain


def _rows(
    schedule: Schedule, last: SBlockRV, reductions: list[SBlockRV], *, is_last_spatial: bool
) -> list[LoopRV]:
    """Return the outer loops of the last block in whose body everything is computed."""
    loops = schedule.get_loops(last)
    n_spatial = len(axes_of(schedule, last, SPATIAL))
    n_rows = min(
        [n_spatial, len(loops), *(len(axes_of(schedule, block, SPATIAL)) for block in reductions)]
    )
    if not is_last_spatial or not n_rows:
        return list(loops[:n_rows])
    inner = loops[n_rows - 1]
    extent = int(schedule.get(inner).extent)
    size = largest_divisor(extent, _MAX_VECTOR)
    if not reductions or size < _MIN_VECTOR:
        size = extent
    outer, _ = schedule.split(inner, [extent // size, size])
    return [*loops[: n_rows - 1], outer]


def parallelise(schedule: Schedule, rows: list[LoopRV], n_jobs: int) -> None:
    """Fuse the first rows until there are enough jobs, and run them in parallel."""
    n, count = 0, 1
    while n < len(rows) and count < n_jobs:
        count *= int(schedule.get(rows[n]).extent)
        n += 1
    schedule.parallel(schedule.fuse(*rows[:n]))


def _cut_between_parts(schedule: Schedule, block: SBlockRV) -> list[LoopRV]:
    """Cut the loop over the last axis where one part of a concatenation ends and the next begins.

    LLVM vectorises loops of one part each; of one loop with conditions, it does so for two parts.

    Returns:
        The loops over the last axis; none if the block has none, or sums.
    """
    loops, axes = schedule.get_loops(block), axes_of(schedule, block, SPATIAL)
    if not loops or not axes or is_reduction(schedule, block):
        return []
    extent = int(axes[-1].dom.extent)
    sizes = _parts(schedule.get(block).body, axes[-1].var, extent)
    if 1 < len(sizes) <= _MAX_PARTS and schedule.get(loops[-1]).extent == extent:
        parts = [*sizes[:-1], None]
        try:
            schedule.copy().loop_partition(loops[-1], parts)
        except ScheduleError:
            return [loops[-1]]
        return list(schedule.loop_partition(loops[-1], parts))
    return [loops[-1]]


def _vectorise(schedule: Schedule, loop: LoopRV, *, is_function: bool) -> None:
    """Make vectors of a loop over the last axis, where that is possible.

    LLVM unrolls a short loop before it looks for vectors, and then makes vectors along the loop
    outside of it, whose numbers lie apart. Longer ones it handles well, but for functions, of which
    it makes shorter vectors.
    """
    extent = schedule.get(loop).extent
    if not isinstance(extent, tvm.tirx.IntImm) or int(extent) < _MIN_VECTOR:
        return
    if int(extent) > _MAX_VECTOR:
        if not is_function or int(extent) % _REGISTER:
            return
        size = _REGISTER * largest_divisor(int(extent) // _REGISTER, _MAX_VECTOR // _REGISTER)
        _, loop = schedule.split(loop, [int(extent) // size, size])
    try:
        schedule.copy().vectorize(loop)
    except ScheduleError:
        return
    schedule.vectorize(loop)


def _is_function_of_neighbours(body: Any) -> bool:
    """Return whether a block computes an elementary function of numbers that lie side by side."""
    names: list[str] = []

    def visit(call: Any) -> None:
        names.append(getattr(call.op, "name", "").rpartition(".")[-1])

    scattered: list[Any] = []
    tvm_ffi.structural_walk(body, [(ir.Call, visit), (_SCATTERING, scattered.append)])
    return not scattered and "if_then_else" not in names and not set(FUNCTIONS).isdisjoint(names)


def _parts(body: Any, last: Any, extent: int) -> list[int]:
    """Return the sizes of the parts of an axis between the numbers that it is compared with."""
    bounds = {0, extent}

    def visit(node: Any) -> None:
        for side, value, other in (("left", node.a, node.b), ("right", node.b, node.a)):
            if isinstance(value, tvm.tirx.IntImm) and last.same_as(other):
                bound = int(value) + ((type(node).__name__, side) not in _BEGINS)
                bounds.add(min(max(bound, 0), extent))

    tvm_ffi.structural_walk(body, ((_COMPARISONS, visit),))
    return [end - start for start, end in itertools.pairwise(sorted(bounds))]


def _reduces_last(schedule: Schedule, block: SBlockRV) -> bool:
    """Return whether a reduction runs along the last axis of what it reads."""
    statement = schedule.get(block)
    last_indices = [region.region[-1].min for region in statement.reads if region.region]
    return any(
        uses(index, axis.var)
        for index in last_indices
        for axis in axes_of(schedule, block, REDUCTION)
    )
