"""Mutants of the fastest records.

Of the programs of a space most are several times slower than the schedule by rule. Where few
records exist, the cost model cannot tell which are not, and what is near is found sooner.
"""

import math
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
from tvm.s_tir.meta_schedule import TuneContext, _ffi_api
from tvm.s_tir.schedule import Trace

from tuner.engines.relax.search import programs
from tuner.engines.relax.search.programs import Program
from tuner.engines.relax.search.rounds import Round

# Fastest records that mutants are made of.
_N_PARENTS = 2
# Mutants that are made for each that is proposed, and attempts to make one.
_MUTANTS_EACH, _ATTEMPTS_EACH = 3, 4
# Most mutations of a mutant.
_MAX_MUTATIONS = 3
_MAX_SEED = 2**30


def offer(turn: Round, known: set[str], n: int) -> list[Program]:
    """Return the best mutants by the cost model, of three times as many."""
    fastest = turn.fastest(_N_PARENTS)
    if not fastest:
        return []
    share = turn.near_share * turn.space.share
    n_attempts = math.ceil(n * _MUTANTS_EACH * _ATTEMPTS_EACH * share)
    drawn = mutants(turn.context, fastest, n_attempts, turn.request.seed)
    made = programs.fresh(programs.applied(turn.context, drawn), known, n * _MUTANTS_EACH)
    order = np.argsort(-turn.score(made), kind="stable") if made else ()
    return [made[index] for index in order[:n]]


def mutants(
    context: TuneContext, parents: Sequence[Trace], n: int, seed: int
) -> Iterator[tuple[str, Trace]]:
    """Yield ``n`` mutants of traces, which may be equal, each behind its origin."""
    random = Random(seed)
    probabilities = context.space_generator.mutator_probs
    mutators = sorted(probabilities, key=str)
    weights = [float(probabilities[mutator]) for mutator in mutators]
    for _ in range(n):
        trace = random.choice(parents)
        for mutator in random.choices(mutators, weights, k=random.randint(1, _MAX_MUTATIONS)):
            mutated = _ffi_api.MutatorApply(mutator, trace, random.randrange(1, _MAX_SEED))
            trace = trace if mutated is None else mutated
        yield "mutants", trace
