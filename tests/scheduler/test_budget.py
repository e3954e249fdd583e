"""Budgets end jobs on time, and trials of other jobs count up to a fair share."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.budget import Budget, credited_trials, default_trials_per_round
from scheduler.errors import SchedulerError

# A busy machine must not fail a test, nor another run find another example.
REPEATABLE = settings(deadline=None, derandomize=True)


@st.composite
def spent(draw: st.DrawFn) -> tuple[list[int], list[int], list[bool], int]:
    """Own and foreign trials, settled flags, and a budget."""
    n_tasks = draw(st.integers(1, 8))
    counts = st.lists(st.integers(0, 60), min_size=n_tasks, max_size=n_tasks)
    flags = st.lists(st.booleans(), min_size=n_tasks, max_size=n_tasks)
    return draw(counts), draw(counts), draw(flags), draw(st.integers(1, 200))


def credit(own: list[int], others: list[int], settled: list[bool], budget: int) -> int:
    """Call credited_trials with lists."""
    return credited_trials(np.array(own), np.array(others), budget, settled=np.array(settled))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, "needs trials, secs, or both"),
        ({"trials": 0}, "trials must be at least 1, got 0"),
        ({"trials": -5}, "trials must be at least 1, got -5"),
        ({"secs": 0.0}, "secs must be finite and above 0, got 0.0"),
        ({"trials": 5, "secs": -1.0}, "secs .* got -1.0"),
        ({"secs": float("nan")}, "secs .* got nan"),
        ({"secs": float("inf")}, "secs .* got inf"),
    ],
)
def test_an_invalid_budget_is_refused(limits: dict[str, Any], message: str) -> None:
    """A limit that allows nothing is named with its value."""
    with pytest.raises(SchedulerError, match=message):
        Budget(**limits)


@pytest.mark.parametrize(
    ("budget", "spent_trials", "spent_secs", "expected"),
    [
        (Budget(trials=10), 9, 1e9, False),
        (Budget(trials=10), 10, 0.0, True),
        (Budget(secs=5.0), 10**9, 4.9, False),
        (Budget(secs=5.0), 0, 5.0, True),
        (Budget(trials=10, secs=5.0), 12, 0.0, True),
    ],
)
def test_the_first_limit_reached_exhausts(
    budget: Budget, spent_trials: int, spent_secs: float, expected: bool
) -> None:
    """Either limit ends the job; a missing one never does."""
    assert budget.exhausted(spent_trials, spent_secs) is expected


def test_the_last_round_is_cut_to_what_is_left() -> None:
    """No round overspends, and a time limit alone does not cut rounds."""
    budget = Budget(trials=100)

    assert [budget.round_size(16, spent) for spent in (0, 90, 100, 120)] == [16, 10, 0, 0]
    assert Budget(secs=1.0).round_size(16, 10**6) == 16
    assert Budget(secs=1.0).remaining_trials(5) is None
    with pytest.raises(SchedulerError, match="trials_per_round must be at least 1, got 0"):
        budget.round_size(0, 0)


@pytest.mark.parametrize(
    ("budget_trials", "n_tasks", "expected"),
    [(1000, 20, 12), (20, 20, 4), (10**6, 20, 64), (1, 1, 4)],
)
def test_rounds_grow_with_the_budget(budget_trials: int, n_tasks: int, expected: int) -> None:
    """About four rounds per task, between 4 and 64 trials."""
    assert default_trials_per_round(budget_trials, n_tasks) == expected


@pytest.mark.parametrize(("budget_trials", "n_tasks"), [(0, 1), (1, 0)])
def test_round_sizes_need_a_budget_and_a_task(budget_trials: int, n_tasks: int) -> None:
    """Zero budgets and zero tasks are errors."""
    with pytest.raises(SchedulerError, match=f"got {budget_trials} and {n_tasks}"):
        default_trials_per_round(budget_trials, n_tasks)


@pytest.mark.parametrize(
    ("own", "others", "settled", "expected"),
    [
        ([0, 0, 0, 0], [0, 0, 0, 0], [False] * 4, 0),  # a fresh job
        ([10, 0, 0, 0], [0, 0, 0, 0], [False] * 4, 10),  # own trials count beyond the share
        ([0, 0, 0, 0], [900, 0, 0, 0], [False] * 4, 6),  # share 5, widened by the remainder
        ([3, 0, 0, 0], [1, 0, 0, 0], [False] * 4, 4),  # both, below the share
        ([3, 0, 0, 0], [9, 9, 0, 0], [False] * 4, 12),  # two shares of 6
        ([9, 0, 0, 0], [9, 0, 0, 0], [False] * 4, 9),  # own beyond the share replace credit
        ([0, 0, 0, 0], [6, 6, 6, 6], [False] * 4, 23),  # tuned elsewhere: nothing to measure
        ([2, 0, 0, 0], [0, 0, 0, 0], [True, False, False, False], 6),  # settled: at least a share
        ([0, 0, 0, 0], [0, 0, 0, 0], [True] * 4, 23),
    ],
)
def test_credit_by_hand(
    own: list[int], others: list[int], settled: list[bool], expected: int
) -> None:
    """A budget of 23 over 4 tasks: shares of 5, three of which may grow to 6."""
    assert credit(own, others, settled, 23) == expected


@REPEATABLE
@given(spent())
def test_own_trials_always_all_count(case: tuple[list[int], list[int], list[bool], int]) -> None:
    """Credit lies between the own trials and the budget plus own trials beyond shares."""
    own, others, settled, budget = case
    beyond = sum(max(n - budget // len(own), 0) for n in own)

    assert 0 <= sum(own) <= credit(own, others, settled, budget) <= budget + beyond


@REPEATABLE
@given(spent(), st.data())
def test_credit_never_falls(
    case: tuple[list[int], list[int], list[bool], int], data: st.DataObject
) -> None:
    """One more trial adds 0 or 1; settling a task subtracts nothing."""
    own, others, settled, budget = case
    task = data.draw(st.integers(0, len(own) - 1))
    before = credit(own, others, settled, budget)
    one_more = [int(i == task) for i in range(len(own))]

    more_own = credit(list(np.add(own, one_more)), others, settled, budget)
    more_others = credit(own, list(np.add(others, one_more)), settled, budget)
    more_settled = [flag or i == task for i, flag in enumerate(settled)]

    assert before <= more_own <= before + 1
    assert before <= more_others <= before + 1
    assert before <= credit(own, others, more_settled, budget)


@REPEATABLE
@given(spent())
def test_tasks_tuned_elsewhere_need_no_measurement(
    case: tuple[list[int], list[int], list[bool], int],
) -> None:
    """The budget is spent if other jobs spent its share on every task."""
    own, others, settled, budget = case
    share = -(-budget // len(own))
    tuned = [max(n, share) for n in others]

    assert credit(own, tuned, settled, budget) >= budget


@REPEATABLE
@given(spent())
def test_without_other_jobs_only_own_trials_count(
    case: tuple[list[int], list[int], list[bool], int],
) -> None:
    """A job alone in its database gets its whole budget."""
    own, _, settled, budget = case

    assert credit(own, [0] * len(own), [False] * len(settled), budget) == sum(own)


@REPEATABLE
@given(spent())
def test_each_task_is_credited_at_most_its_share(
    case: tuple[list[int], list[int], list[bool], int],
) -> None:
    """One intensively tuned task cannot use up the budget of the others."""
    own, others, settled, budget = case
    only_first = [others[0] + 1000] + [0] * (len(own) - 1)
    fresh, none_settled = [0] * len(own), [False] * len(settled)

    assert credit(fresh, only_first, none_settled, budget) <= -(-budget // len(own))


def test_credit_refuses_misuse() -> None:
    """Negative counts, other shapes and empty budgets are named."""
    ones = np.ones(2, np.int64)
    with pytest.raises(SchedulerError, match="own must be non-negative"):
        credited_trials(-ones, ones, 5)
    with pytest.raises(SchedulerError, match=r"others \(3,\)"):
        credited_trials(ones, np.ones(3, np.int64), 5)
    with pytest.raises(SchedulerError, match="budget must be at least 1, got 0"):
        credited_trials(ones, ones, 0)
