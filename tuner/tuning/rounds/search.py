"""Search of one round: islands side by side, merged into distinct candidates."""

import asyncio
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from records.storage.text import storable
from tuner.engines.base import Candidate, MeasuredTrace, SearchRequest
from tuner.errors import WorkerLost, WorkError
from tuner.executors.base import Executor
from tuner.workers.base import CallTimeout


@dataclass(frozen=True)
class SearchSettings:
    """Effort of the search of one round.

    Attributes:
        n_islands: Searches side by side, each with a share of the population.
        population_per_trial: Traces alive in each generation, per requested candidate.
        min_population: Smallest population of an island.
        n_generations: Generations of mutation once the cost model is trained.
        timeout_secs: Time limit of an island, seconds.
        random_share: Expected share of a round's candidates that are drawn at random
            (MetaSchedule's and Ansor's), so that the cost model learns more than its own choices.
        n_attempts: Searches without result, each with other seeds and twice the population of the
            one before, after which the space counts as exhausted.
    """

    n_islands: int = 2
    population_per_trial: int = 6
    min_population: int = 16
    n_generations: int = 2
    timeout_secs: float = 300.0
    random_share: float = 0.05
    n_attempts: int = 3


@dataclass(frozen=True)
class SearchInputs:
    """Inputs of the search of one round.

    Attributes:
        ir: IR of the workload.
        target: Canonical JSON of the target.
        measured: Every trial spent on the task before.
        cost_model: Saved cost model.
        n_candidates: Largest number of candidates to return.
        seeds: Seed of the job and sequence number of the pick.
        peak_flops: See :class:`SearchRequest`.
    """

    ir: bytes
    target: str
    measured: tuple[MeasuredTrace, ...]
    cost_model: bytes
    n_candidates: int
    seeds: tuple[int, int]
    peak_flops: float = 0.0


async def search(
    executor: Executor, settings: SearchSettings, inputs: SearchInputs
) -> list[Candidate]:
    """Return distinct unmeasured candidates, those with the best prediction first.

    Returns:
        At most ``n_candidates``; empty if the space is exhausted.

    Raises:
        WorkError: If every island was lost, timed out or returned something malformed.
    """
    for attempt in range(settings.n_attempts):
        candidates = await _search_islands(executor, settings, inputs, attempt)
        if candidates:
            return candidates
    return []


async def _search_islands(
    executor: Executor, settings: SearchSettings, inputs: SearchInputs, attempt: int
) -> list[Candidate]:
    n_random = draw_n_random(settings.random_share, inputs.n_candidates, inputs.seeds)
    n_islands = settings.n_islands
    if inputs.n_candidates == 1 and not inputs.measured and attempt == 0:
        # The first candidate of a task is its schedule by rule, where there is one.
        n_random, n_islands = 0, 1
    requests = [
        _request(settings, inputs, n_random, island, attempt) for island in range(n_islands)
    ]
    # gather starts all islands before it waits for the first.
    results = await asyncio.gather(
        *(_search_island(executor, request, settings.timeout_secs) for request in requests),
        return_exceptions=True,
    )
    # An engine recognises measured programs by hashes, and older hashes may differ.
    spent = {trial.trace for trial in inputs.measured}
    islands, errors = [], []
    for result in results:
        if isinstance(result, (CallTimeout, WorkError, OSError)):
            errors.append(str(result) or f"took longer than {settings.timeout_secs:g} s")
        elif isinstance(result, BaseException):
            raise result
        else:
            islands.append([each for each in result if each.trace not in spent])
    if not islands:
        raise WorkError(f"the search failed: {errors[0]}")
    return merge(islands, inputs.n_candidates, n_random)


def _request(
    settings: SearchSettings, inputs: SearchInputs, n_random: int, island: int, attempt: int
) -> SearchRequest:
    """Return the request of one island; the last islands draw the random candidates."""
    population = settings.population_per_trial * inputs.n_candidates // settings.n_islands
    # A first attempt does not mix its number into the seed.
    seeds = (*inputs.seeds, island) if attempt == 0 else (*inputs.seeds, island, attempt)
    return SearchRequest(
        ir=inputs.ir,
        target=inputs.target,
        measured=inputs.measured,
        cost_model=inputs.cost_model,
        n_candidates=-(-inputs.n_candidates // settings.n_islands),
        population=max(population, settings.min_population) * 2**attempt,
        n_generations=settings.n_generations,
        seed=_mix_seed(*seeds),
        n_random=(n_random + island) // settings.n_islands,
        peak_flops=inputs.peak_flops,
    )


async def _search_island(
    executor: Executor, request: SearchRequest, timeout_secs: float
) -> list[Candidate]:
    """Search on one island, once more if its worker is lost."""
    try:
        result = await executor.submit("propose", request, timeout_secs=timeout_secs)
    except WorkerLost:
        result = await executor.submit("propose", request, timeout_secs=timeout_secs)
    if isinstance(result, list) and all(map(_is_candidate, result)):
        return result
    raise WorkError(f"the search returned something that is not candidates: {result!r:.200}")


def draw_n_random(share: float, n_candidates: int, seeds: tuple[int, int]) -> int:
    """Draw the number of random candidates of a round; its expectation is exactly their share.

    A share of one in twenty is one candidate in every twentieth round of a single candidate.
    """
    return math.floor(share * n_candidates + Random(repr(seeds)).random())


def _mix_seed(*numbers: int) -> int:
    """Mix numbers into a seed in the range of TVM: from 1 to 2**31 - 1."""
    return zlib.crc32(repr(numbers).encode()) % (2**31 - 1) + 1


def _is_candidate(value: Any) -> bool:
    """Return whether a value is a candidate that every database can store."""
    return (
        isinstance(value, Candidate)
        and isinstance(value.features, bytes)
        and all(
            isinstance(text, str) and text != "" and storable(text) == text
            for text in (value.trace, value.module_hash)
        )
        and isinstance(value.origin, str)
        and storable(value.origin) == value.origin
    )


def merge(islands: Sequence[list[Candidate]], n_candidates: int, n_random: int) -> list[Candidate]:
    """Merge the islands rank by rank, so that each contributes its best; equal programs once.

    Args:
        islands: Candidates of each island, the best first.
        n_candidates: Largest number of candidates to return.
        n_random: Number of random ones among them, if there are as many.

    Returns:
        The chosen candidates, then the random ones, of which more fill up the number.
    """
    best = _in_turns(islands, is_random=False)
    randoms = {
        module_hash: candidate
        for module_hash, candidate in _in_turns(islands, is_random=True).items()
        if module_hash not in best
    }
    n_best = n_candidates - min(n_random, len(randoms))
    chosen = list(best.values())[:n_best]
    return [*chosen, *list(randoms.values())[: n_candidates - len(chosen)]]


def _in_turns(islands: Sequence[list[Candidate]], *, is_random: bool) -> dict[str, Candidate]:
    """Return the random candidates, or the others, island by island in turns, by program."""
    merged: dict[str, Candidate] = {}
    kinds = [[each for each in island if each.is_random is is_random] for island in islands]
    for rank in range(max(map(len, kinds))):
        for candidates in kinds:
            if rank < len(candidates):
                merged.setdefault(candidates[rank].module_hash, candidates[rank])
    return merged
