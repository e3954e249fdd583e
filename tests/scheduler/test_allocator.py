"""Picks of a greedy allocator: warm-up, retries, gains, draws."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scheduler.allocator import GreedyAllocator, GreedySettings, backoff, choose_retry
from scheduler.allocators import RoundRobinAllocator
from scheduler.errors import SchedulerError
from scheduler.gradient import GradientEstimator
from scheduler.objectives import Networks, make_objective
from scheduler.state import TaskTable

INF = float("inf")
GREEDY = GreedySettings(epsilon=0.0)
MakeTable = Callable[..., TaskTable]


def gradient(
    table: TaskTable, settings: GreedySettings | None = None, seed: int = 7
) -> GreedyAllocator:
    """Return the gradient allocator over the table's own weights."""
    objective = make_objective("weighted_sum", Networks.single(table.weights))
    return GreedyAllocator(settings or GreedySettings(), GradientEstimator(), objective, seed)


def test_warm_up_visits_every_task_once_largest_first(make_table: MakeTable) -> None:
    """Order is weight x flop, ties to the lowest row; rounds are capped."""
    weights, flop = [1, 4, 2, 1], [3e6, 1e6, 2e6, 9e6]
    n_rounds, picks = np.zeros(4, np.int64), []
    settings = GreedySettings(warmup_trials=5)
    for sequence in range(4):
        table = make_table(4, weights=weights, flop=flop, n_rounds=n_rounds.copy())
        decision = gradient(table, settings).choose(table, sequence=sequence, n_trials=16)
        assert decision is not None
        picks.append((decision.task, decision.reason, decision.n_trials))
        n_rounds[decision.task] += 1

    assert picks == [(task, "warm_up", 5) for task in (3, 1, 2, 0)]


def test_warm_up_never_exceeds_what_is_left(make_table: MakeTable) -> None:
    """A large warm-up round is cut to the available trials."""
    table = make_table(n_rounds=[0, 0, 0])

    decision = gradient(table, GreedySettings(warmup_trials=64)).choose(
        table, sequence=0, n_trials=3
    )

    assert decision is not None
    assert decision.n_trials == 3


def test_the_largest_gain_wins_with_its_terms(make_table: MakeTable) -> None:
    """Weights 1, 5, 4 over equal latencies: row 1, then row 2, with all terms."""
    table = make_table(weights=[1, 5, 4], best_secs=[2.0] * 3, window_secs=[2.0] * 3)

    decision = gradient(table, GREEDY).choose(table, sequence=3, n_trials=16)

    assert decision is not None
    assert (decision.task, decision.n_trials, decision.reason) == (1, 16, "gradient")
    assert decision.terms == pytest.approx(
        {
            "backward": 0.0,
            "optimistic": -2.0,
            "similarity": 2.0,
            "roof": 0.0,
            "objective_weight": 5.0,
            "gain": 8.0,
            "cost": 1.0,
            "epsilon_draw": np.random.default_rng([7, 3]).random(),
            "runner_up": 2,
            "runner_up_gain": 6.4,
        }
    )


def test_costs_are_relative_to_the_average_and_bounded(make_table: MakeTable) -> None:
    """Trials of 1 and 3 seconds cost half and one and a half; below a tenth is noise."""
    table = make_table(3, secs_per_trial=[1.0, 3.0, 0.0])
    cheap = make_table(2, secs_per_trial=[1e-9, 1.0])
    terms = [gradient(t, GREEDY).choose(t, sequence=0, n_trials=16) for t in (table, cheap)]

    assert [decision and decision.terms["cost"] for decision in terms] == [0.5, 0.1]
    assert gradient(table, GREEDY).gains(table) == pytest.approx(
        np.array([1.6e-3, 1.6e-3 / 3, 0.8e-3])
    )


def test_nothing_is_picked_without_a_gradient(make_table: MakeTable) -> None:
    """Measured tasks without weight and tasks that never ran are not picked."""
    idle = make_table(2, weights=[0, 0])
    failing = make_table(
        2, weights=[0, 1], best_secs=[1.0, INF], n_failed_rounds=[0, 3], rounds_since_pick=[0, 1]
    )

    for table in (idle, failing):
        assert gradient(table).choose(table, sequence=0, n_trials=8) is None


def test_ties_go_to_the_lowest_row_and_a_lone_task_has_no_runner_up(
    make_table: MakeTable,
) -> None:
    """Dead and failed tasks are never the runner-up."""
    tied = make_table(3)
    lone = make_table(3, alive=[False, True, False])

    first = gradient(tied, GREEDY).choose(tied, sequence=0, n_trials=8)
    only = gradient(lone, GREEDY).choose(lone, sequence=0, n_trials=8)

    assert first is not None
    assert (first.task, first.terms["runner_up"]) == (0, 1)
    assert only is not None
    assert only.task == 1
    assert "runner_up" not in only.terms


def test_epsilon_reaches_every_task_with_a_gain(make_table: MakeTable) -> None:
    """Uniform picks go to each promising task about equally often, and to no other."""
    table = make_table(5, weights=[1000, 1, 1, 0, 1], alive=[True, True, True, True, False])
    allocator = gradient(table, GreedySettings(epsilon=0.5))

    decisions = [allocator.choose(table, sequence=i, n_trials=8) for i in range(600)]
    explored = [d.task for d in decisions if d is not None and d.reason == "epsilon"]

    counts = np.bincount(explored, minlength=5)
    assert len(explored) == pytest.approx(300, abs=50)
    assert counts[3] == counts[4] == 0
    assert (counts[:3] > 70).all()


def test_the_seed_and_the_sequence_make_the_draw(make_table: MakeTable) -> None:
    """Draws differ between picks and between seeds."""
    table = make_table()
    draws = {
        decision.terms["epsilon_draw"]
        for seed in range(3)
        for sequence in range(3)
        if (decision := gradient(table, seed=seed).choose(table, sequence=sequence, n_trials=8))
    }

    assert len(draws) == 9


def test_a_retry_shows_its_back_off(make_table: MakeTable) -> None:
    """The terms of a retry are stored with the decision."""
    table = make_table(2, best_secs=[INF, 1.0], n_failed_rounds=[2, 0], rounds_since_pick=[3, 0])

    decision = gradient(table).choose(table, sequence=9, n_trials=8)

    assert decision is not None
    assert (decision.task, decision.reason) == (0, "retry")
    assert decision.terms == {"n_failed_rounds": 2.0, "rounds_since_pick": 3.0, "backoff": 2.0}


@pytest.mark.parametrize(
    "columns",
    [
        {"n_rounds": [3, 2, 2, 0], "alive": [True, True, True, False]},
        {"n_rounds": [1, 1, 2, 2], "n_in_flight": [2, 1, 0, 0]},
    ],
)
def test_round_robin_takes_turns(make_table: MakeTable, columns: dict[str, Any]) -> None:
    """Fewest rounds first, those in flight included, ties to the lowest row; dead ones never."""
    decision = RoundRobinAllocator().choose(make_table(4, **columns), sequence=0, n_trials=8)

    assert decision is not None
    assert (decision.task, decision.reason, decision.terms) == (1, "round_robin", {"n_rounds": 2.0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": -0.1}, r"epsilon must lie in \[0, 1\], got -0.1"),
        ({"epsilon": float("nan")}, "epsilon .* got nan"),
        ({"warmup_trials": 0}, "warmup_trials must be at least 1, got 0"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    """Each parameter is checked, and the message contains its value."""
    with pytest.raises(SchedulerError, match=message):
        GreedySettings(**changes)


def test_a_negative_seed_is_refused(make_table: MakeTable) -> None:
    """The message contains the seed."""
    with pytest.raises(SchedulerError, match="seed must be at least 0, got -1"):
        gradient(make_table(), seed=-1)


def test_a_decision_over_many_tasks_is_the_largest_gain(make_table: MakeTable) -> None:
    """Among 100,000 tasks in groups, the pick has the largest gain for its cost."""
    n_tasks = 100_000
    draws = np.random.default_rng(0)
    table = make_table(
        n_tasks,
        best_secs=draws.uniform(1e-4, 1e-2, n_tasks),
        similarity_groups=draws.integers(0, 1000, n_tasks),
    )
    allocator = gradient(table)

    decision = allocator.choose(table, sequence=1, n_trials=8)

    assert decision is not None
    assert decision.terms["gain"] == max(allocator.gains(table))


def test_backoff_doubles_without_overflow() -> None:
    """1, 2, 4, 8 picks, and a finite wait after any number of failures."""
    assert backoff(np.array([0, 1, 2, 3, 4])).tolist() == [1, 1, 2, 4, 8]
    assert backoff(np.array([10**6]))[0] == 2**40


@pytest.mark.parametrize(
    ("failed", "since", "more", "expected"),
    [
        # It is due after enough picks of other tasks.
        ([1, 0], [0, 0], {}, None),
        ([1, 0], [1, 0], {}, 0),
        ([2, 0], [1, 0], {}, None),
        ([2, 0], [2, 0], {}, 0),
        ([4, 0], [7, 0], {}, None),
        ([4, 0], [8, 0], {}, 0),
        # None follows a failed round: tasks with a gradient get every second pick.
        ([1, 1, 0], [5, 0, 6], {}, None),
        # With no gradient anywhere, the nearest to due goes on.
        ([4, 3, 3], [0, 2, 1], {}, 1),
        # An exhausted task is not retried.
        ([1, 0], [9, 0], {"alive": [False, True]}, None),
        # Other failed tasks go while one is in flight; without one there is no pick.
        ([1, 3], [9, 0], {}, 0),
        ([1, 3], [9, 0], {"n_in_flight": [1, 0]}, 1),
        ([1, 3], [9, 0], {"n_in_flight": [1, 1]}, None),
    ],
)
def test_a_failed_task_waits_its_back_off(
    make_table: MakeTable,
    failed: list[int],
    since: list[int],
    more: dict[str, Any],
    expected: int | None,
) -> None:
    """The wait doubles with each failure; a retry never takes the turn of a task that runs."""
    best_secs = [INF if n else 1.0 for n in failed]
    columns = {"n_failed_rounds": failed, "rounds_since_pick": since, **more}

    assert choose_retry(make_table(len(failed), best_secs=best_secs, **columns)) == expected
