"""One round of search: islands that run side by side, merged into distinct candidates."""

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

_ATTEMPTS = 2


@dataclass(frozen=True)
class SearchSettings:
    """How hard a round searches.

    Attributes:
        n_islands: Searches side by side, each with a share of the population.
        population_per_trial: Traces alive in each generation, for every candidate wanted.
        min_population: But at least so many on every island.
        n_generations: Generations of mutation once the cost model knows something.
        timeout_secs: An island that takes longer is given up.
    """

    n_islands: int = 2
    population_per_trial: int = 6
    min_population: int = 16
    n_generations: int = 2
    timeout_secs: float = 300.0


@dataclass(frozen=True)
class SearchInputs:
    """What a round searches with.

    Attributes:
        ir: The workload.
        target: Canonical JSON of the target.
        measured: Every trial spent on the task before.
        cost_model: A saved cost model.
        n_candidates: Wanted.
        seeds: The job's seed and the pick's sequence number.
    """

    ir: bytes
    target: str
    measured: tuple[MeasuredTrace, ...]
    cost_model: bytes
    n_candidates: int
    seeds: tuple[int, int]


async def search(
    executor: Executor, settings: SearchSettings, wanted: SearchInputs
) -> list[Candidate]:
    """Return distinct unmeasured candidates, the best expected first.

    Returns:
        At most ``n_candidates``; empty if the space is exhausted.

    Raises:
        WorkError: If every island was lost, timed out or answered garbage.
    """
    requests = [_island(settings, wanted, island) for island in range(settings.n_islands)]
    # All are started before the first is waited for.
    searches = [_search(executor, settings, request) for request in requests]
    ended = await asyncio.gather(*searches, return_exceptions=True)
    found, errors = [], []
    for each in ended:
        if isinstance(each, (CallTimeout, WorkError, OSError)):
            errors.append(str(each) or f"took longer than {settings.timeout_secs:g} s")
        elif isinstance(each, BaseException):
            raise each
        else:
            found.append(each)
    if not found:
        raise WorkError(f"the search failed: {errors[0]}")
    return _merge(found, wanted.n_candidates)


def _island(settings: SearchSettings, wanted: SearchInputs, island: int) -> SearchRequest:
    population = settings.population_per_trial * wanted.n_candidates // settings.n_islands
    return SearchRequest(
        ir=wanted.ir,
        target=wanted.target,
        measured=wanted.measured,
        cost_model=wanted.cost_model,
        n_candidates=-(-wanted.n_candidates // settings.n_islands),
        population=max(population, settings.min_population),
        n_generations=settings.n_generations,
        seed=_seed(*wanted.seeds, island),
    )


def _seed(*numbers: int) -> int:
    """Mix numbers into a seed that TVM takes: from 1 to 2**31 - 1."""
    return zlib.crc32(repr(numbers).encode()) % (2**31 - 1) + 1


async def _search(
    executor: Executor, settings: SearchSettings, request: SearchRequest
) -> list[Candidate]:
    """Search an island; a lost worker is tried once more."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _checked(
                await executor.submit("propose", request, timeout_secs=settings.timeout_secs)
            )
        except WorkerLost:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _checked(answer: Any) -> list[Candidate]:
    """Refuse what is no list of candidates: a worker may return anything.

    Raises:
        WorkError: If it is none.
    """
    if isinstance(answer, list) and all(map(_is_candidate, answer)):
        return answer
    raise WorkError(f"the search returned no candidates but {answer!r:.200}")


def _is_candidate(each: Any) -> bool:
    """Whether something is a candidate that every database can store."""
    return (
        isinstance(each, Candidate)
        and isinstance(each.features, bytes)
        and all(_is_storable(text) for text in (each.trace, each.module_hash))
    )


def _is_storable(text: Any) -> bool:
    return isinstance(text, str) and text != "" and storable(text) == text


def _merge(found: Sequence[list[Candidate]], n_candidates: int) -> list[Candidate]:
    """Take turns between the islands, each in its own order, so that every one has its say."""
    merged: dict[str, Candidate] = {}
    for rank in range(max(map(len, found))):
        for candidates in found:
            if rank < len(candidates):
                merged.setdefault(candidates[rank].module_hash, candidates[rank])
    return list(merged.values())[:n_candidates]
