"""Programs drawn at random from the search space of a task, without evolution or cost model."""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate
from tvm.s_tir.schedule import Trace

from tuner.engines.relax import workloads

# Attempts per requested program, and for the first. A space of which fewer than one draw in
# sixteen is a new, valid program counts as exhausted.
_ATTEMPTS_EACH = 16
_MIN_ATTEMPTS = 64
_MAX_SEED = 2**30

DrawTraces = Callable[[int, int], list[Trace]]
"""Draws traces with their decisions, given their number and a seed."""


def draw(
    context: TuneContext,
    draw_traces: DrawTraces,
    known: set[str],
    n: int,
    seed: int,
    *,
    share: float = 1.0,
) -> list[MeasureCandidate]:
    """Draw programs that are not known; fewer than ``n`` if too few draws are new and valid.

    Args:
        context: Initialised context, whose post-processors decide which programs are valid.
        draw_traces: Source of traces.
        known: Hashes of the programs that are not to be drawn.
        n: Number of programs.
        seed: Seed of every draw.
        share: Share of the usual attempts to make; at least one for each program.
    """
    n_attempts = max(n, math.ceil(share * max(_ATTEMPTS_EACH * n, _MIN_ATTEMPTS)))
    random, seen = Random(seed), set(known)
    drawn: list[MeasureCandidate] = []
    arguments = ArgInfo.from_entry_func(context.mod)
    for trace in islice(_traces(draw_traces, n_attempts, random), n_attempts):
        if len(drawn) == n:
            break
        schedule = apply(context, trace, random.randrange(1, _MAX_SEED))
        if schedule is None:
            continue
        module_hash = workloads.hash_of(schedule.mod)
        if module_hash not in seen:
            seen.add(module_hash)
            drawn.append(MeasureCandidate(schedule, arguments))
    return drawn


def draw_undecided(spaces: list[Schedule]) -> DrawTraces:
    """Return a source of traces without decisions, which are drawn when a trace is applied."""

    def draw_traces(n: int, seed: int) -> list[Trace]:
        random = Random(seed)
        return [Trace(random.choice(spaces).trace.insts, {}) for _ in range(n)]

    return draw_traces


def _traces(draw_traces: DrawTraces, n: int, random: Random) -> Iterator[Trace]:
    """Yield ``n`` traces, drawn in portions."""
    for _ in range(0, n, _ATTEMPTS_EACH):
        yield from draw_traces(_ATTEMPTS_EACH, random.randrange(1, _MAX_SEED))


def apply(context: TuneContext, trace: Trace, seed: int) -> Schedule | None:
    """Apply and post-process a trace; None if it is not valid."""
    schedule = Schedule(context.mod, seed=seed)
    try:
        trace.apply_to_schedule(schedule, remove_postproc=True)
        schedule.enter_postproc()
        is_valid = all(processor.apply(schedule) for processor in context.space_generator.postprocs)
    except (ValueError, RuntimeError, tvm.error.InternalError):
        return None
    return schedule if is_valid else None
