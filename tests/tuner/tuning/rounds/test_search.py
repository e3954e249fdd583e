"""The candidates of a round: chosen and random ones of several islands."""

import asyncio
from itertools import count
from typing import TYPE_CHECKING, cast

import pytest

from tests.engines import toy
from tuner import cost_models
from tuner.engines.base import Candidate, MeasuredTrace, SearchRequest
from tuner.tuning.rounds.search import SearchInputs, SearchSettings, draw_n_random, merge, search

if TYPE_CHECKING:
    from tuner.executors.base import Executor


def candidate(name: str, *, is_random: bool = False) -> Candidate:
    """Return a candidate by the name of its program."""
    return Candidate("[]", name, b"", 0.0, "random" if is_random else "evolution")


def names(candidates: list[Candidate]) -> list[str]:
    """Return the programs of candidates."""
    return [each.module_hash for each in candidates]


@pytest.mark.parametrize("n_candidates", [1, 4, 7, 16, 30])
def test_one_candidate_in_twenty_is_random_in_rounds_of_any_size(n_candidates: int) -> None:
    """Over many rounds the share is exact, and one round differs from the next by one at most."""
    n_random = [draw_n_random(0.05, n_candidates, (3, sequence)) for sequence in range(4000)]

    assert sum(n_random) / 4000 / n_candidates == pytest.approx(0.05, rel=0.25)
    assert max(n_random) - min(n_random) == 1
    assert n_random == [draw_n_random(0.05, n_candidates, (3, n)) for n in range(4000)]


def test_random_candidates_are_not_cut_off() -> None:
    """They replace the last chosen ones, and a program that was chosen does not count as random."""
    islands = [
        [candidate("a"), candidate("b"), candidate("x", is_random=True)],
        [candidate("c"), candidate("a"), candidate("c", is_random=True)],
    ]

    assert names(merge(islands, 3, 1)) == ["a", "c", "x"]
    assert names(merge(islands, 3, 2)) == ["a", "c", "x"]
    assert names(merge(islands, 3, 0)) == ["a", "c", "b"]
    assert names(merge(islands, 5, 0)) == ["a", "c", "b", "x"]


class Islands:
    """Searches of the toy engine, of which the first ``n_empty`` find nothing."""

    def __init__(self, n_empty: int) -> None:
        self.requests: list[SearchRequest] = []
        self._numbers, self._n_empty = count(), n_empty

    async def submit(
        self, _function: str, request: SearchRequest, *, timeout_secs: float
    ) -> list[Candidate]:
        """Answer one island."""
        assert timeout_secs > 0
        self.requests.append(request)
        return [] if next(self._numbers) < self._n_empty else toy.propose(request)


def search_with(executor: Islands, measured: tuple[MeasuredTrace, ...] = ()) -> list[Candidate]:
    """Search for six candidates of a toy task."""
    task = toy.make_task("heavy", weight=1, base_secs=1e-3)
    model = cost_models.create("random", 0).save()
    inputs = SearchInputs(task.ir, toy.SPEC, measured, model, 6, (1, 2))
    return asyncio.run(search(cast("Executor", executor), SearchSettings(), inputs))


def test_an_empty_answer_is_followed_by_other_seeds_and_larger_populations() -> None:
    """Both islands found nothing once, and then candidates."""
    executor = Islands(n_empty=2)

    assert search_with(executor)
    assert len({request.seed for request in executor.requests}) == 4
    assert [request.population for request in executor.requests] == [18, 18, 36, 36]


def test_a_space_is_exhausted_after_empty_answers_of_six_seeds() -> None:
    """No candidate is returned, and none of the seeds was used twice."""
    executor = Islands(n_empty=100)

    assert search_with(executor) == []
    assert len({request.seed for request in executor.requests}) == 6


def test_a_trace_that_was_measured_is_no_candidate() -> None:
    """The engine proposes it, as its record has another hash of the program."""
    proposed = search_with(Islands(n_empty=0))
    measured = tuple(MeasuredTrace(each.trace, "older", 1e-3) for each in proposed)

    again = search_with(Islands(n_empty=0), measured)

    assert again
    assert {each.trace for each in again}.isdisjoint(each.trace for each in proposed)


def test_a_first_look_is_one_search_and_not_random() -> None:
    """One island searches for the only candidate of a task without records."""
    executor = Islands(n_empty=0)
    task = toy.make_task("heavy", weight=1, base_secs=1e-3)
    model = cost_models.create("random", 0).save()
    settings = SearchSettings(random_share=1.0)

    inputs = SearchInputs(task.ir, toy.SPEC, (), model, 1, (1, 2))
    asyncio.run(search(cast("Executor", executor), settings, inputs))

    assert [(each.n_candidates, each.n_random) for each in executor.requests] == [(1, 0)]
