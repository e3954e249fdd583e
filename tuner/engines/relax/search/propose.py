"""One round of TVM's evolutionary search as a pure function of the measured traces.

Between rounds the strategy keeps the set of programs already measured, which no
database holds. Here every round starts a fresh strategy on the records, requests
as many more candidates as were measured, and drops those whose program was
measured. It is single-threaded, because TVM hands work to threads in the order
they become free, and each thread has its own random state.
"""

import itertools
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.cost_model import PyCostModel
from tvm.s_tir.meta_schedule.database import MemoryDatabase, TuningRecord
from tvm.s_tir.meta_schedule.mutator import Mutator
from tvm.s_tir.meta_schedule.schedule_rule import ScheduleRule
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch, MeasureCandidate
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.s_tir.schedule import Trace
from tvm.target import Target

from tuner import cost_models
from tuner.cost_models import features as feature_blobs
from tuner.engines.base import Candidate, MeasuredTrace, SearchRequest, variant_of
from tuner.engines.relax import traces, workloads
from tuner.engines.relax.kinds import is_cuda
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.schedules.gpu import intrinsics, tensor_cores
from tuner.engines.relax.schedules.variants.base import without_packing
from tuner.engines.relax.search import (
    effort,
    features,
    gpu_sampling,
    mutants,
    random_programs,
    rules,
    variants,
)
from tuner.engines.relax.search.variants import VariantSpace
from tuner.engines.relax.targets import make_target
from tuner.errors import WorkError

# Share of the population seeded from records (MetaSchedule's).
_MEASURED_RATIO = 0.2
# Traces with which an evolution begins; a search of fewer has mutants and random programs alone.
_MIN_POPULATION = 4
# Records of which mutants are made.
_N_PARENTS = 2
# Share of candidates that are near known schedules, and that share among the first of a task.
_NEAR, _NEAR_AT_FIRST, _N_AT_FIRST = 0.5, 0.75, 16
# Slower than every record, but below the 1e10 that TVM takes for a failure.
_SLOWEST_SECS = 1e6


def propose(request: SearchRequest) -> list[Candidate]:
    """Search one task; see :class:`Engine`."""
    by_rules = _by_rules(request)
    if by_rules is not None:
        return by_rules
    if request.n_candidates == 1 and not request.measured and not request.n_random:
        candidates = _propose_by_rule(request)
        if candidates:
            return candidates
    spaces = variants.spaces_of(request.ir, request.target)
    if not spaces:
        return _search(request, {measured.module_hash for measured in request.measured})
    model = _SearchModel(cost_models.load(request.cost_model))
    known = {measured.module_hash for measured in request.measured}
    shares = variants.divide(request, spaces)
    candidates = [
        candidate
        for name, space in spaces.items()
        for candidate in _of_variant(space, space.fresh(known, shares[name], request.seed), model)
    ]
    if not shares[""]:
        return candidates
    of_workload = tuple(each for each in request.measured if not variant_of(each.trace))
    rest = replace(request, measured=of_workload, n_candidates=shares[""])
    searched = _search(rest, known)
    # Where islands are merged, the last candidates can be dropped.
    return [*searched[:1], *candidates, *searched[1:]]


def _propose_by_rule(request: SearchRequest) -> list[Candidate]:
    """Return the program that a library without records uses; nothing without a rule."""
    target = make_target(request.target)
    if is_cuda(target):
        return []
    module = workloads.load(request.ir)
    model = _SearchModel(cost_models.load(request.cost_model))
    variant = variant_of(ranking.compute_variant(module, target))
    if variant:
        space = variants.spaces_of(request.ir, request.target)[variant]
        return _of_variant(space, space.fresh(set(), 1, request.seed), model)
    ranked = rules.ranked(request.ir, request.target)
    context = _context(module, target, request)
    return _candidates(context, list(itertools.islice(ranked, 1)), model)


def _by_rules(request: SearchRequest) -> list[Candidate] | None:
    """Return schedules of a workload that has none but those by rule; None for others.

    Of products of packed weights, most programs of TVM's space do not compile, and its tiles leave
    the registers; it has no program that keeps the scores of attention in the cache. The first
    schedule is the likeliest; islands draw theirs from the next few.
    """
    if is_cuda(make_target(request.target)):
        return None
    context, programs = rules.closed(request.ir, request.target)
    if next(iter(programs), None) is None:
        return None
    known = {measured.module_hash for measured in request.measured}
    n = request.n_candidates + request.n_random
    drawn = mutants.draw_first(programs, known, n, request.seed)
    model = _SearchModel(cost_models.load(request.cost_model))
    return _candidates(context, drawn, model)


def _of_variant(
    space: VariantSpace, schedules: list[Schedule], model: "_SearchModel"
) -> list[Candidate]:
    context = TuneContext(mod=space.program, target=space.target, num_threads=1)
    if not schedules:
        return []
    kernels = [Schedule(without_packing(schedule.mod)) for schedule in schedules]
    extracted = features.extract(context, [MeasureCandidate(each, []) for each in kernels])
    return [
        Candidate(
            trace=traces.dump(schedule.trace, space.variant.name_of(schedule)),
            module_hash=workloads.hash_of(schedule.mod),
            features=feature_blobs.pack(features),
            score=float(score),
        )
        for schedule, features, score in zip(
            schedules, extracted, model.model.predict(extracted), strict=True
        )
    ]


def _search(request: SearchRequest, known: set[str]) -> list[Candidate]:
    """Search the workload itself for programs that are not known."""
    target = make_target(request.target)
    module = workloads.load(request.ir)
    spaces = _design_space(request.ir, request.target)
    is_cpu = not is_cuda(target)
    if is_cpu and effort.are_closed(spaces):
        return _of_closed(request, known)
    share = effort.share(spaces) if is_cpu else 1.0
    model = _SearchModel(cost_models.load(request.cost_model))
    # On a GPU, TVM's check takes some 30 ms for each program: too long to evolve without records
    # by random scores.
    evolves = is_cpu or bool(request.measured) or not model.model.is_random
    request = replace(request, population=int(request.population * share) if evolves else 0)
    seeds = _seeds(spaces, module, target, request)
    context = _context(module, target, request)
    context.pre_tuning(
        max_trials=2**30,
        num_trials_per_iter=request.n_candidates + len(known),
        design_spaces=spaces,
        database=_database(module, target, request, seeds),
        cost_model=model,
    )
    near = _near(context, request, known, model, share)
    picked: list[MeasureCandidate] = []
    if request.population >= _MIN_POPULATION:
        picked = context.generate_measure_candidates() or []
    best = mutants.fresh([*near, *picked], known, request.n_candidates)
    # TVM returns nothing where it cannot draw a first population, which does not mean that the
    # space holds no further program: too few candidates are made up for by random ones.
    drawn = random_programs.draw(
        context,
        _draw_traces(spaces, module, target),
        known | {workloads.hash_of(candidate.sch.mod) for candidate in best},
        request.n_candidates - len(best) + request.n_random,
        request.seed,
        share=share,
    )
    return [
        *_candidates(context, best, model),
        *(replace(each, is_random=True) for each in _candidates(context, drawn, model)),
    ]


def _of_closed(request: SearchRequest, known: set[str]) -> list[Candidate]:
    """Return programs of closed spaces that are not known; islands draw theirs from the next."""
    context, programs = rules.of_closed_spaces(request.ir, request.target)
    n = request.n_candidates + request.n_random
    drawn = mutants.draw_first(programs, known, n, request.seed)
    return _candidates(context, drawn, _SearchModel(cost_models.load(request.cost_model)))


def _near(
    context: TuneContext,
    request: SearchRequest,
    known: set[str],
    model: "_SearchModel",
    share: float,
) -> list[MeasureCandidate]:
    """Return a part of a round: schedules by rule, and mutants of the fastest records.

    The first candidate of a task is its schedule by rule. A GPU has no such schedules.
    """
    target = make_target(request.target)
    if is_cuda(target):
        return []
    # Rounds of a single candidate take turns.
    share = _NEAR_AT_FIRST if len(request.measured) < _N_AT_FIRST else _NEAR
    n = int(request.n_candidates * share + (request.seed % 2) / 2)
    n = max(n, 0 if request.measured else 1)
    ranked = rules.ranked(request.ir, request.target)
    by_rule = mutants.draw_first(ranked, known, -(-n // 2), request.seed)
    seen = known | {workloads.hash_of(candidate.sch.mod) for candidate in by_rule}
    fastest = _traces_of(_fastest(request.measured, _N_PARENTS), context.mod)
    n_mutants = n - len(by_rule)
    mutated = mutants.draw_mutants(context, fastest, seen, n_mutants, request.seed, share=share)
    if not mutated:
        # Schedules by rule without decisions of TVM's have no mutants, but neighbours.
        n_more = n_mutants if fastest else 0
        more = mutants.draw_first(ranked, seen, n_more, request.seed)
        return [*by_rule, *more]
    order = np.argsort(-model.predict(context, mutated), kind="stable")
    return [*by_rule, *(mutated[index] for index in order[:n_mutants])]


def _draw_traces(
    spaces: list[Schedule], module: tvm.IRModule, target: Target
) -> random_programs.DrawTraces:
    """Return the source of random traces: on a GPU, of those that fit its limits."""
    if not is_cuda(target):
        return random_programs.draw_undecided(spaces)
    return lambda n, seed: gpu_sampling.sample(spaces, module, target, n, seed)


def _seeds(
    spaces: list[Schedule], module: tvm.IRModule, target: Target, request: SearchRequest
) -> list[Trace]:
    """Draw the first population for a GPU, because TVM would reject nearly all of its own."""
    if not is_cuda(target):
        return []
    return gpu_sampling.sample(spaces, module, target, _n_first(request), request.seed)


def _n_first(request: SearchRequest) -> int:
    return min(50, request.population // 2)


def _context(module: tvm.IRModule, target: Target, request: SearchRequest) -> TuneContext:
    generator = PostOrderApply(postprocs=rules.postprocessors())
    # Seeds reach TVM as records of the database, all of which it takes.
    ratio, n_drawn = _MEASURED_RATIO, _n_first(request)
    if is_cuda(target):
        mutators = gpu_sampling.mutators(module, target, request.seed)
        generator = _gpu_generator([], mutators)
        ratio, n_drawn = 1.0, 0
    return TuneContext(
        mod=module,
        target=target,
        space_generator=generator,
        search_strategy=EvolutionarySearch(
            population_size=request.population,
            init_measured_ratio=ratio,
            init_min_unmeasured=n_drawn,
            genetic_num_iters=request.n_generations,
            eps_greedy=0.0,
        ),
        num_threads=1,
        rand_state=request.seed,
    )


def _gpu_generator(rules: list[ScheduleRule], mutators: dict[Mutator, float]) -> PostOrderApply:
    return PostOrderApply(
        sch_rules=rules, postprocs=traces.gpu_processors(), mutator_probs=mutators
    )


@lru_cache(maxsize=64)
def _design_space(ir: bytes, spec: str) -> list[Schedule]:
    target = make_target(spec)
    if not is_cuda(target):
        return rules.design_spaces(ir, spec)
    module = workloads.load(ir)
    *tiled, others = tensor_cores.rules_for(module, target)
    generated = [
        space
        for rules in tiled
        for space in _generate_if_fit(module, target, rules)
        if intrinsics.named_in(traces.dump(space.trace))
    ]
    return generated + traces.design_spaces(module, target, _gpu_generator(others, {}))


def _generate_if_fit(
    module: tvm.IRModule, target: Target, rules: list[ScheduleRule]
) -> list[Schedule]:
    """Generate the spaces of tensor cores; none for shapes that make TVM's rules raise."""
    try:
        return traces.design_spaces(module, target, _gpu_generator(rules, {}))
    except (ValueError, RuntimeError):
        return []


def _database(
    module: tvm.IRModule, target: Target, request: SearchRequest, seeds: list[Trace]
) -> MemoryDatabase:
    """Return a database of the fastest records, as many as seed the population of the search.

    Additional seeds count as slower than any record.
    """
    database = MemoryDatabase()
    workload = database.commit_workload(module)
    arguments = ArgInfo.from_entry_func(module)

    def add(trace: Trace, secs: float) -> None:
        record = TuningRecord(trace, workload, [secs], target, arguments)
        database.commit_tuning_record(record)

    fastest = _fastest(request.measured, int(request.population * _MEASURED_RATIO))
    for measured in fastest:
        for trace in _traces_of([measured], module):
            add(trace, float(measured.latency or 0.0))
    for position, trace in enumerate(seeds):
        add(trace, _SLOWEST_SECS + position)
    return database


def _traces_of(measured: list[MeasuredTrace], module: tvm.IRModule) -> list[Trace]:
    """Return the traces of records; none of records of another version, which cannot be read."""
    replayed = []
    for each in measured:
        with suppress(WorkError):
            replayed.append(traces.replay(module, each.trace).trace)
    return replayed


def _fastest(measured: tuple[MeasuredTrace, ...], n: int) -> list[MeasuredTrace]:
    ran = [record for record in measured if record.latency is not None]
    return sorted(ran, key=lambda record: (record.latency, record.module_hash))[:n]


def _candidates(
    context: TuneContext, picked: list[MeasureCandidate], model: "_SearchModel"
) -> list[Candidate]:
    if not picked:
        return []
    extracted = features.extract(context, picked)
    scores = model.model.predict(extracted)
    return [
        Candidate(
            trace=traces.dump(candidate.sch.trace),
            module_hash=workloads.hash_of(candidate.sch.mod),
            features=feature_blobs.pack(features),
            score=float(score),
        )
        for candidate, features, score in zip(picked, extracted, scores, strict=True)
    ]


@derived_object
class _SearchModel(PyCostModel):  # type: ignore[misc]  # TVM has no types
    """Adapter that gives TVM's search one of the tuner's cost models."""

    def __init__(self, model: cost_models.CostModel) -> None:
        super().__init__()
        self.model = model

    def load(self, path: str) -> None:
        """Not called: models come as bytes."""

    def save(self, path: str) -> None:
        """Not called: models go as bytes."""

    def update(self, context: Any, candidates: Any, results: Any) -> None:
        """Not called: the coordinator decides when a model is trained."""

    def predict(
        self, context: TuneContext, candidates: list[MeasureCandidate]
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Score candidates, shape (n_candidates,), higher is better."""
        return self.model.predict(features.extract(context, candidates))
