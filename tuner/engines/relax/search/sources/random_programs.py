"""Programs drawn at random from the search space of a task, without evolution or cost model."""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace

from tuner.engines.relax.search import programs
from tuner.engines.relax.search.programs import Program
from tuner.engines.relax.search.rounds import Round

# Attempts per requested program, and for the first. A space of which fewer than one draw in
# sixteen is a new, valid program counts as exhausted.
_ATTEMPTS_EACH = 16
_MIN_ATTEMPTS = 64
_MAX_SEED = 2**30

DrawTraces = Callable[[int, int], list[Trace]]
"""Draws traces with their decisions, given their number and a seed."""


def offer(turn: Round, known: set[str], n: int) -> list[Program]:
    """Draw programs that are not known; fewer than ``n`` if too few draws are new and valid."""
    least = math.ceil(turn.space.share * max(_ATTEMPTS_EACH * n, _MIN_ATTEMPTS))
    n_attempts, random = max(n, least), Random(turn.request.seed)
    traces = islice(_traces(turn.space.draw_traces, n_attempts, random), n_attempts)
    drawn = (
        Program(schedule, "random")
        for trace in traces
        if (schedule := programs.apply(turn.context, trace, random.randrange(1, _MAX_SEED)))
    )
    return programs.fresh(drawn, known, n)


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
