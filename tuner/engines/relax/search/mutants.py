"""Candidates near good schedules: further ones by rule, and mutants of the fastest records.

Of the programs of a space most are several times slower than the schedule by rule. Where few
records exist, the cost model cannot tell which are not, and what is near is found sooner.
"""

import logging
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from random import Random

from tvm.s_tir.meta_schedule import TuneContext, _ffi_api
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate
from tvm.s_tir.schedule import Trace

from tuner.engines.relax import workloads
from tuner.engines.relax.search import random_programs

_LOG = logging.getLogger(__name__)
# Schedules by rule among which one is drawn.
_WINDOW = 2
# Mutants that are made for each that is proposed, and attempts to make one.
_MUTANTS_EACH, _ATTEMPTS_EACH = 3, 4
# Most mutations of a mutant.
_MAX_MUTATIONS = 3
_MAX_SEED = 2**30


def draw_first(
    candidates: Iterable[MeasureCandidate], known: set[str], n: int, seed: int
) -> list[MeasureCandidate]:
    """Return candidates that are not known: the first, and draws of the next few.

    Args:
        candidates: Candidates, the likeliest first.
        known: Hashes of the programs that are not to be drawn.
        n: Number of programs.
        seed: Seed of the draws.
    """
    window = fresh(candidates, known, _WINDOW * n)
    first, others = window[:1], window[1:]
    Random(seed).shuffle(others)
    return [*first, *others][:n]


def draw_mutants(
    context: TuneContext,
    fastest: Sequence[Trace],
    known: set[str],
    n: int,
    seed: int,
    *,
    share: float = 1.0,
) -> list[MeasureCandidate]:
    """Return mutants of traces that are not known; some more than ``n``, to choose from.

    Args:
        context: Initialised context with the mutators.
        fastest: Traces to mutate.
        known: Hashes of the programs that are not to be drawn.
        n: Number of mutants that are needed.
        seed: Seed of the draws.
        share: Share of the usual attempts to make.
    """
    if not fastest:
        return []
    n_attempts = math.ceil(n * _MUTANTS_EACH * _ATTEMPTS_EACH * share)
    drawn = mutants(context, fastest, n_attempts, seed)
    return fresh(applied(context, drawn), known, n * _MUTANTS_EACH)


def mutants(context: TuneContext, parents: Sequence[Trace], n: int, seed: int) -> Iterator[Trace]:
    """Yield ``n`` mutants of traces, which may be equal."""
    random = Random(seed)
    probabilities = context.space_generator.mutator_probs
    mutators = sorted(probabilities, key=str)
    weights = [float(probabilities[mutator]) for mutator in mutators]
    for _ in range(n):
        trace = random.choice(parents)
        for mutator in random.choices(mutators, weights, k=random.randint(1, _MAX_MUTATIONS)):
            mutated = _ffi_api.MutatorApply(mutator, trace, random.randrange(1, _MAX_SEED))
            trace = trace if mutated is None else mutated
        yield trace


def programs(context: TuneContext, traces: Iterable[Trace]) -> list[MeasureCandidate]:
    """Return the different programs of those traces that are valid."""
    return fresh(applied(context, traces), set(), sys.maxsize)


def fresh(
    candidates: Iterable[MeasureCandidate], known: set[str], n: int
) -> list[MeasureCandidate]:
    """Return the first ``n`` candidates with different programs that are not known."""
    seen = set(known)
    picked: list[MeasureCandidate] = []
    for candidate in candidates if n else ():
        module_hash = workloads.hash_of(candidate.sch.mod)
        if module_hash not in seen:
            seen.add(module_hash)
            picked.append(candidate)
        if len(picked) >= n:
            break
    return picked


def applied(context: TuneContext, traces: Iterable[Trace]) -> Iterator[MeasureCandidate]:
    """Yield the programs of those traces that are valid; of equal traces, that of the first."""
    arguments = ArgInfo.from_entry_func(context.mod)
    texts: set[str] = set()
    for trace in traces:
        if (text := str(trace)) in texts:
            continue
        texts.add(text)
        try:
            schedule = random_programs.apply(context, trace, seed=1)
        except Exception:
            _LOG.exception("a trace fails, the others are applied")
            continue
        if schedule is not None:
            yield MeasureCandidate(schedule, arguments)
