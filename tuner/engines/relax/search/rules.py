"""Programs of a workload that follow from its structure: applied once, whatever the rounds ask for.

A round looks for the first programs by rule that were not measured. A worker proposes for a task
many times, so it keeps those that it has applied.
"""

import itertools
import logging
from collections.abc import Iterator
from functools import lru_cache

from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import TuneContext, postproc
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.s_tir.schedule import Trace

from tuner.engines.relax import traces, workloads
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.search import effort, mutants
from tuner.engines.relax.targets import make_target
from tuner.errors import WorkError

_LOG = logging.getLogger(__name__)
# Tasks whose programs are kept.
_N_TASKS = 64


class Programs:
    """Programs that are applied when they are first needed."""

    def __init__(self, applied: Iterator[MeasureCandidate]) -> None:
        self._rest = applied
        self._kept: list[MeasureCandidate] = []

    def __iter__(self) -> Iterator[MeasureCandidate]:
        """Yield all programs, from the first one on."""
        for place in itertools.count():
            if place == len(self._kept):
                program = next(self._rest, None)
                if program is None:
                    return
                self._kept.append(program)
            yield self._kept[place]


@lru_cache(maxsize=_N_TASKS)
def closed(ir: bytes, spec: str) -> tuple[TuneContext, Programs]:
    """Return the programs of a workload that has those by rule alone; none for others.

    Args:
        ir: IR of the workload.
        spec: Target for a CPU.
    """
    context = _context(ir, spec)
    workload = ranking.describe(context.mod, context.target)
    by_rule = (trace for _, trace in ranking.ranked(workload, is_closed=True))
    return context, Programs(mutants.applied(context, _replayed(context, by_rule)))


def _replayed(context: TuneContext, by_rule: Iterator[Trace]) -> Iterator[Trace]:
    """Yield the traces as a record would hold them."""
    for trace in by_rule:
        try:
            replayed = traces.replay(context.mod, traces.dump(trace)).trace
        except WorkError:
            _LOG.exception("a schedule by rule cannot be replayed, the others are")
            continue
        yield replayed


@lru_cache(maxsize=_N_TASKS)
def ranked(ir: bytes, spec: str) -> Programs:
    """Return the programs by rule of a workload, the one estimated to be fastest first."""
    context = _context(ir, spec)
    workload = ranking.describe(context.mod, context.target, design_spaces(ir, spec))
    by_rule = (trace for _, trace in ranking.ranked(workload))
    return Programs(mutants.applied(context, by_rule))


@lru_cache(maxsize=_N_TASKS)
def of_closed_spaces(ir: bytes, spec: str) -> tuple[TuneContext, list[MeasureCandidate]]:
    """Return all programs of a workload whose spaces leave nothing to decide."""
    context = _context(ir, spec)
    return context, effort.closed_programs(context, design_spaces(ir, spec))


@lru_cache(maxsize=_N_TASKS)
def design_spaces(ir: bytes, spec: str) -> list[Schedule]:
    """Return TVM's spaces of a workload for a CPU."""
    generator = PostOrderApply(postprocs=postprocessors())
    return traces.design_spaces(workloads.load(ir), make_target(spec), generator)


def postprocessors() -> list[postproc.Postproc]:
    """Return the post-processors without weight packing, a third of the search."""
    return [
        postproc.DisallowDynamicLoop(),
        postproc.RewriteParallelVectorizeUnroll(),
        postproc.RewriteReductionBlock(),
        postproc.RewriteTensorize(),
    ]


def _context(ir: bytes, spec: str) -> TuneContext:
    """Return a context that applies traces, but searches nothing."""
    return TuneContext(
        mod=workloads.load(ir),
        target=make_target(spec),
        space_generator=PostOrderApply(postprocs=postprocessors()),
        num_threads=1,
        rand_state=1,
    )
