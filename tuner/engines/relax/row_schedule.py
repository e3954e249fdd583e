"""Schedules by rule for kernels without reuse: elementwise, pooling, softmax, normalisation.

TVM's rules tile products and convolutions; of other kernels they leave the reductions scalar. Here
one nest of loops over rows computes everything, and the cores share the rows. Reductions over the
last axis are loops that LLVM vectorises; of reductions over other axes, the last axis moves inside.
"""

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

_SPATIAL, _REDUCTION = 0, 2
# Elements of the last axis that one step of a reduction over other axes handles.
_MIN_VECTOR, _MAX_VECTOR = 8, 64


def schedule_rows(schedule: Schedule, n_jobs: int) -> None:
    """Schedule the only function of a module in place.

    Args:
        schedule: Schedule of an unscheduled workload.
        n_jobs: Parallel jobs to cut the rows into; 1 for none.

    Raises:
        ScheduleError: If the workload has another structure; the schedule is then half done.
    """
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    *producers, last = [
        block
        for number, block in enumerate(blocks, 1)
        if not _inline(schedule, block, blocks[number:])
    ]
    reductions = [block for block in (*producers, last) if _count(schedule, block, _REDUCTION)]
    is_last_spatial = not any(_reduces_last(schedule, block) for block in reductions)
    rows = _rows(schedule, last, reductions, is_last_spatial=is_last_spatial)
    if not rows:
        return  # one number, from a loop of which LLVM makes vectors
    for block in reversed(producers):
        schedule.compute_at(block, rows[-1], preserve_unit_loops=True)
    if n_jobs > 1:
        _parallelise(schedule, rows, n_jobs)
    if is_last_spatial:
        for block in reductions:
            _move_inside(schedule, block)


def _inline(schedule: Schedule, block: SBlockRV, later: list[SBlockRV]) -> bool:
    """Inline a block into one of the later ones where that repeats no work and hides no vectors."""
    (written,) = [region.source for region in schedule.get(block).writes]
    consumers = [
        other
        for other in later
        if any(region.source.same_as(written) for region in schedule.get(other).reads)
    ]
    if len(consumers) != 1 or _count(schedule, block, _REDUCTION):
        return False
    if _count(schedule, consumers[0], _REDUCTION):
        return False
    schedule.compute_inline(block)
    return True


def _rows(
    schedule: Schedule, last: SBlockRV, reductions: list[SBlockRV], *, is_last_spatial: bool
) -> list[LoopRV]:
    """Return the outer loops of the last block in whose body everything is computed."""
    loops = schedule.get_loops(last)
    n_spatial = _count(schedule, last, _SPATIAL)
    n_rows = min(
        [n_spatial, len(loops), *(_count(schedule, block, _SPATIAL) for block in reductions)]
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


def _move_inside(schedule: Schedule, block: SBlockRV) -> None:
    """Move the last spatial loop of a reduction inside the reduced ones, and vectorise it."""
    n_reduced = _count(schedule, block, _REDUCTION)
    loops = schedule.get_loops(block)
    reduced, spatial = loops[-n_reduced:], loops[-n_reduced - 1]
    schedule.reorder(*reduced, spatial)
    if int(schedule.get(spatial).extent) % _MIN_VECTOR == 0:
        schedule.vectorize(spatial)
    schedule.decompose_reduction(block, reduced[0])


def _parallelise(schedule: Schedule, rows: list[LoopRV], n_jobs: int) -> None:
    """Fuse the first rows until there are enough jobs, and run them in parallel."""
    n, count = 0, 1
    while n < len(rows) and count < n_jobs:
        count *= int(schedule.get(rows[n]).extent)
        n += 1
    schedule.parallel(schedule.fuse(*rows[:n]))


def _reduces_last(schedule: Schedule, block: SBlockRV) -> bool:
    """Return whether a reduction runs along the last axis of what it reads."""
    statement = schedule.get(block)
    reduced = [axis.var for axis in statement.iter_vars if int(axis.iter_type) == _REDUCTION]
    last_indices = [region.region[-1].min for region in statement.reads if region.region]
    return any(
        used.same_as(variable)
        for index in last_indices
        for used in tvm.tirx.analysis.undefined_vars(index)
        for variable in reduced
    )


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number up to a limit; 1 if the limit is below 1."""
    return max(d for d in range(1, max(min(number, most), 1) + 1) if number % d == 0)


def _count(schedule: Schedule, block: SBlockRV, kind: int) -> int:
    return sum(int(axis.iter_type) == kind for axis in schedule.get(block).iter_vars)
