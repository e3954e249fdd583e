"""One round of search as a pure function of the measured traces: sources, and one merge."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tvm.s_tir.meta_schedule import TuneContext

from tuner import cost_models
from tuner.cost_models import features as feature_blobs
from tuner.engines.base import Candidate, SearchRequest, variant_of
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.schedules import catalogue, ranking
from tuner.engines.relax.search import features, programs
from tuner.engines.relax.search.programs import Program
from tuner.engines.relax.search.rounds import Round
from tuner.engines.relax.search.sources import evolution, mutants, random_programs, rules, variants
from tuner.engines.relax.search.spaces import space_of
from tuner.engines.relax.target.targets import make_target

#: Offers programs that are not known, up to a number, the likeliest first.
Source = Callable[[Round, set[str], int], list[Program]]


def propose(request: SearchRequest) -> list[Candidate]:
    """Search one task; see :class:`Engine`."""
    known = {measured.module_hash for measured in request.measured}
    by_rule = rules.closed_programs(request.ir, request.target)
    if next(iter(by_rule), None) is not None:
        # Islands draw theirs from the next few.
        n = request.n_candidates + request.n_random
        return _candidates(request, programs.draw_first(by_rule, known, n, request.seed))
    if request.n_candidates == 1 and not request.measured and not request.n_random:
        first = _first_look(request)
        if first:
            return _candidates(request, first)
    spaces = variants.spaces_of(request.ir, request.target)
    shares = variants.divide(request, spaces)
    offered = [
        program
        for name, space in spaces.items()
        for program in space.fresh(known, shares[name], request.seed)
    ]
    is_refused = any(shares.values()) and not offered
    n_own = request.n_candidates if is_refused else shares[""]
    if not n_own:
        return _candidates(request, offered)
    of_workload = tuple(each for each in request.measured if not variant_of(each.trace))
    rest = replace(request, measured=of_workload, n_candidates=n_own)
    searched = _search(rest, known)
    # Where islands are merged, the last candidates can be dropped.
    return _candidates(request, [*searched[:1], *offered, *searched[1:]])


def _first_look(request: SearchRequest) -> list[Program]:
    """Return the program that a library without records uses; nothing without a rule."""
    target = make_target(request.target)
    if rules.offer not in _SOURCES[str(target.kind.name)]:
        return []
    variant = variant_of(ranking.compute_variant(workloads.load(request.ir), target))
    if variant:
        space = variants.spaces_of(request.ir, request.target)[catalogue.family_of(variant)]
        return space.fresh(set(), 1, request.seed)
    return list(itertools.islice(rules.ranked_programs(request.ir, request.target), 1))


def _search(request: SearchRequest, known: set[str]) -> list[Program]:
    """Search the workload itself: each source offers what those before it do not.

    Random programs fill the rest of the round.
    """
    space = space_of(request.ir, request.target)
    if not space.schedules:
        return []
    n = request.n_candidates + request.n_random
    if space.is_closed:
        closed = rules.programs_of_closed_spaces(request.ir, request.target)
        return programs.draw_first(closed, known, n, request.seed)
    module, target = workloads.load(request.ir), make_target(request.target)
    turn = Round(request, module, target, space, cost_models.load(request.cost_model), known)
    # Programs that a round has at most once the source has offered its own.
    limits: Mapping[Source, int] = {
        rules.offer: -(-turn.n_near // 2),
        _offer_mutants: turn.n_near,
        evolution.offer: request.n_candidates,
        random_programs.offer: n,
    }
    offered: list[Program] = []
    for source in _SOURCES[str(target.kind.name)]:
        n_missing = limits[source] - len(offered)
        if n_missing > 0:
            offered += source(turn, known | {each.module_hash for each in offered}, n_missing)
    return offered


def _offer_mutants(turn: Round, known: set[str], n: int) -> list[Program]:
    """Offer mutants of the fastest records, and further schedules by rule where these have none.

    Schedules by rule without decisions of TVM's have no mutants, but neighbours.
    """
    made = mutants.offer(turn, known, n)
    return made or (rules.offer(turn, known, n) if turn.fastest(1) else [])


# Sources of candidates for the workload itself, by kind of target, in their order.
_SOURCES: Mapping[str, Sequence[Source]] = {
    "llvm": (rules.offer, _offer_mutants, evolution.offer, random_programs.offer),
    "cuda": (evolution.offer, random_programs.offer),
}


def _candidates(request: SearchRequest, offered: Sequence[Program]) -> list[Candidate]:
    """Return programs as candidates, with their features and scores."""
    if not offered:
        return []
    target, model = make_target(request.target), cost_models.load(request.cost_model)
    context = TuneContext(mod=workloads.load(request.ir), target=target, num_threads=1)
    extracted = features.extract(context, [program.schedule for program in offered])
    return [
        Candidate(
            trace=traces.dump(program.schedule.trace, program.variant),
            module_hash=program.module_hash,
            features=feature_blobs.pack(stores),
            score=float(score),
            origin=program.origin,
        )
        for program, stores, score in zip(offered, extracted, model.predict(extracted), strict=True)
    ]
