"""Search of one round: islands side by side, merged into distinct candidates."""

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from records.text import storable
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
    """

    n_islands: int = 2
    population_per_trial: int = 6
    min_population: int = 16
    n_generations: int = 2
    timeout_secs: float = 300.0


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
    """

    ir: bytes
    target: str
    measured: tuple[MeasuredTrace, ...]
    cost_model: bytes
    n_candidates: int
    seeds: tuple[int, int]


async def search(
    executor: Executor, settings: SearchSettings, inputs: SearchInputs
) -> list[Candidate]:
    """Return distinct unmeasured candidates, those with the best prediction first.

    Returns:
        At most ``n_candidates``; empty if the space is exhausted.

    Raises:
        WorkError: If every island was lost, timed out or returned something malformed.
    """
    # gather starts all islands before it waits for the first.
    results = await asyncio.gather(
        *(_search_island(executor, settings, inputs, i) for i in range(settings.n_islands)),
        return_exceptions=True,
    )
    islands, errors = [], []
    for result in results:
        if isinstance(result, (CallTimeout, WorkError, OSError)):
            errors.append(str(result) or f"took longer than {settings.timeout_secs:g} s")
        elif isinstance(result, BaseException):
            raise result
        else:
            islands.append(result)
    if not islands:
        raise WorkError(f"the search failed: {errors[0]}")
    return _merge(islands, inputs.n_candidates)


async def _search_island(
    executor: Executor, settings: SearchSettings, inputs: SearchInputs, island: int
) -> list[Candidate]:
    """Search on one island, once more if its worker is lost."""
    population = settings.population_per_trial * inputs.n_candidates // settings.n_islands
    request = SearchRequest(
        ir=inputs.ir,
        target=inputs.target,
        measured=inputs.measured,
        cost_model=inputs.cost_model,
        n_candidates=-(-inputs.n_candidates // settings.n_islands),
        population=max(population, settings.min_population),
        n_generations=settings.n_generations,
        seed=_mix_seed(*inputs.seeds, island),
    )
    timeout = settings.timeout_secs
    try:
        result = await executor.submit("propose", request, timeout_secs=timeout)
    except WorkerLost:
        result = await executor.submit("propose", request, timeout_secs=timeout)
    return _validate(result)


def _mix_seed(*numbers: int) -> int:
    """Mix numbers into a seed in the range of TVM: from 1 to 2**31 - 1."""
    return zlib.crc32(repr(numbers).encode()) % (2**31 - 1) + 1


def _validate(result: Any) -> list[Candidate]:
    """Return the result of a worker, which can be anything, if it is a list of candidates.

    Raises:
        WorkError: If it is not.
    """
    if isinstance(result, list) and all(map(_is_candidate, result)):
        return result
    raise WorkError(f"the search returned something that is not candidates: {result!r:.200}")


def _is_candidate(value: Any) -> bool:
    """Return whether a value is a candidate that every database can store."""
    return (
        isinstance(value, Candidate)
        and isinstance(value.features, bytes)
        and all(_is_storable(text) for text in (value.trace, value.module_hash))
    )


def _is_storable(text: Any) -> bool:
    return isinstance(text, str) and text != "" and storable(text) == text


def _merge(islands: Sequence[list[Candidate]], n_candidates: int) -> list[Candidate]:
    """Merge the islands rank by rank, so that each contributes its best."""
    merged: dict[str, Candidate] = {}
    for rank in range(max(map(len, islands))):
        for candidates in islands:
            if rank < len(candidates):
                merged.setdefault(candidates[rank].module_hash, candidates[rank])
    return list(merged.values())[:n_candidates]
