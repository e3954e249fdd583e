"""Programs by rule: applied once, whatever the rounds ask for.

A round looks for the first programs by rule that were not measured. A worker proposes for a task
many times, so it keeps those that it has applied.
"""

import itertools
import logging
import sys
from collections.abc import Iterator
from functools import lru_cache

import tvm
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.schedule import Trace

from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.schedules.ranking import Named
from tuner.engines.relax.search import programs
from tuner.engines.relax.search.programs import Program
from tuner.engines.relax.search.rounds import Round
from tuner.engines.relax.search.sources import mutants
from tuner.engines.relax.search.spaces import cpu_generator, cpu_spaces
from tuner.engines.relax.target.targets import make_target
from tuner.errors import WorkError

_LOG = logging.getLogger(__name__)
# Tasks whose programs are kept.
_N_TASKS = 64
# Mutants that are tried of a closed space: they differ in the number of parallel loops.
_N_MUTANTS = 8


class Programs:
    """Programs that are applied when they are first needed."""

    def __init__(self, applied: Iterator[Program]) -> None:
        self._rest = applied
        self._kept: list[Program] = []

    def __iter__(self) -> Iterator[Program]:
        """Yield all programs, from the first one on."""
        for place in itertools.count():
            if place == len(self._kept):
                program = next(self._rest, None)
                if program is None:
                    return
                self._kept.append(program)
            yield self._kept[place]


def offer(turn: Round, known: set[str], n: int) -> list[Program]:
    """Return the first programs by rule that are not known, and draws of the next few."""
    ranked = ranked_programs(turn.request.ir, turn.request.target)
    return programs.draw_first(ranked, known, n, turn.request.seed)


@lru_cache(maxsize=_N_TASKS)
def closed_programs(ir: bytes, spec: str) -> Programs:
    """Return the programs of a closed rule set; none if the workload has a search space."""

    def applied() -> Iterator[Program]:
        workload = ranking.describe(workloads.load(ir), make_target(spec))
        replayed = _replayed(workload.module, ranking.ranked(workload, is_closed=True))
        for first in replayed:
            yield from programs.applied(_context(ir, spec), itertools.chain([first], replayed))

    return Programs(applied())


def _replayed(module: tvm.IRModule, by_rule: Iterator[Named]) -> Iterator[tuple[str, Trace]]:
    """Yield the traces as a record would hold them."""
    for origin, trace in _with_origins(by_rule):
        try:
            replayed = traces.replay(module, traces.dump(trace)).trace
        except WorkError:
            _LOG.exception("a schedule by rule cannot be replayed, the others are")
            continue
        yield origin, replayed


@lru_cache(maxsize=_N_TASKS)
def ranked_programs(ir: bytes, spec: str) -> Programs:
    """Return the programs by rule of a workload, the one estimated to be fastest first."""
    context = _context(ir, spec)
    workload = ranking.describe(context.mod, context.target, cpu_spaces(ir, spec))
    return Programs(programs.applied(context, _with_origins(ranking.ranked(workload))))


@lru_cache(maxsize=_N_TASKS)
def programs_of_closed_spaces(ir: bytes, spec: str) -> list[Program]:
    """Return all programs of a workload whose spaces leave nothing to decide.

    They are that by rule, one a space, and few mutants of these.
    """
    context, spaces = _context(ir, spec), cpu_spaces(ir, spec)
    workload = ranking.describe(context.mod, context.target, spaces)
    fixed = [space.trace for space in spaces]
    all_traces = itertools.chain(
        _with_origins(ranking.ranked(workload)),
        (("rules:space", trace) for trace in fixed),
        mutants.mutants(context, fixed, _N_MUTANTS, seed=1),
    )
    return programs.fresh(programs.applied(context, all_traces), set(), sys.maxsize)


def _with_origins(by_rule: Iterator[Named]) -> Iterator[tuple[str, Trace]]:
    return ((f"rules:{name}", trace) for name, trace in by_rule)


def _context(ir: bytes, spec: str) -> TuneContext:
    """Return a context that applies traces, but searches nothing."""
    return TuneContext(
        mod=workloads.load(ir),
        target=make_target(spec),
        space_generator=cpu_generator(),
        num_threads=1,
        rand_state=1,
    )
