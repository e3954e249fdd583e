"""Whole jobs on synthetic latency curves."""

from dataclasses import dataclass

import numpy as np
import pytest

from scheduler.allocator import Allocator, GreedyAllocator, GreedySettings
from scheduler.allocators import RoundRobinAllocator
from scheduler.arrays import Floats, Ints
from scheduler.estimate import total_latency
from scheduler.gradient import GradientEstimator
from scheduler.objectives import Networks, make_objective
from scheduler.state import TaskTable, window_of

N_TASKS, N_ROUNDS = 20, 600


@dataclass(frozen=True)
class Curves:
    """Tasks whose best latency falls convexly from floor + span to floor.

    ``long_tail``: by span / (1 + rounds / pace), as searches do; else exponentially.
    """

    weights: Ints
    flop: Floats
    floor: Floats
    span: Floats
    pace: Floats
    n_failing: Ints
    long_tail: bool = True

    def latency(self, task: int, n_rounds: int) -> float:
        """Return the best latency after some rounds, seconds; inf while the task fails."""
        valid = n_rounds - self.n_failing[task]
        if valid <= 0:
            return float("inf")
        age = valid / self.pace[task]
        left = 1.0 / (1.0 + age) if self.long_tail else np.exp(-age)
        return float(self.floor[task] + self.span[task] * left)


def make_curves(seed: int, *, n_failing: int = 0, long_tail: bool = True) -> Curves:
    """Draw a network with realistic variation; its first task fails ``n_failing`` rounds."""
    draws = np.random.default_rng(seed)
    floor = draws.lognormal(-8.0, 1.5, N_TASKS)
    return Curves(
        weights=draws.integers(1, 12, N_TASKS),
        flop=floor * 1e11 * draws.uniform(0.3, 1.0, N_TASKS),
        floor=floor,
        span=floor * draws.uniform(0.5, 6.0, N_TASKS),
        pace=draws.uniform(1.0, 8.0, N_TASKS),
        n_failing=np.array([n_failing] + [0] * (N_TASKS - 1)),
        long_tail=long_tail,
    )


def tabulate(curves: Curves, histories: list[list[float]], since: Ints) -> TaskTable:
    """Build the table that a job would read from its records."""
    n_rounds = np.array([len(history) for history in histories])
    failed = np.array([np.isinf(history).sum() if history else 0 for history in histories])
    best = np.array([history[-1] if history else np.inf for history in histories])
    return TaskTable(
        weights=curves.weights,
        flop=curves.flop,
        best_secs=best,
        window_secs=np.array([window_of(np.array(history), 3) for history in histories]),
        n_rounds=n_rounds,
        n_trials=16 * n_rounds,
        n_failed_rounds=np.where(np.isinf(best), failed, 0),
        rounds_since_pick=since,
        alive=np.ones(N_TASKS, np.bool_),
    )


def simulate(curves: Curves, allocator: Allocator) -> tuple[list[float], list[tuple[int, str]]]:
    """Run a job; return the network's latency after each round, and the picks."""
    histories: list[list[float]] = [[] for _ in range(N_TASKS)]
    since = np.zeros(N_TASKS, np.int64)
    totals: list[float] = []
    picks: list[tuple[int, str]] = []
    for sequence in range(N_ROUNDS):
        table = tabulate(curves, histories, since.copy())
        decision = allocator.choose(table, sequence=sequence, n_trials=16)
        assert decision is not None
        history = histories[decision.task]
        history.append(curves.latency(decision.task, len(history) + 1))
        since += 1
        since[decision.task] = 0
        best = np.array([history[-1] if history else np.inf for history in histories])
        totals.append(total_latency(curves.weights, best))
        picks.append((decision.task, decision.reason))
    return totals, picks


def rounds_to(totals: list[float], goal: float) -> int:
    """Count the rounds until the network reaches the goal, which it must reach."""
    assert min(totals) <= goal
    return int(np.argmax(np.array(totals) <= goal)) + 1


def gradient(curves: Curves) -> GreedyAllocator:
    """Return the default gradient allocator, seeded."""
    objective = make_objective("weighted_sum", Networks.single(curves.weights))
    return GreedyAllocator(GreedySettings(), GradientEstimator(), objective, seed=7)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_arrives_before_round_robin(seed: int) -> None:
    """It needs fewer rounds to 2 % of round-robin's final total, and ends below it."""
    curves = make_curves(seed)

    fast, _ = simulate(curves, gradient(curves))
    slow, _ = simulate(curves, RoundRobinAllocator())

    goal = 1.02 * slow[-1]
    assert fast[-1] < slow[-1]
    assert rounds_to(fast, goal) < rounds_to(slow, goal)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_leads_early_where_tasks_saturate(seed: int) -> None:
    """Within 20 % of the floor it is first on exponential curves too.

    No claim is made closer to the floor: -g/n never learns that a task has saturated,
    so with a budget that suffices for every task, round-robin finishes the small ones first.
    """
    curves = make_curves(seed, long_tail=False)
    goal = 1.2 * total_latency(curves.weights, curves.floor)

    fast, _ = simulate(curves, gradient(curves))
    slow, _ = simulate(curves, RoundRobinAllocator())

    assert rounds_to(fast, goal) < rounds_to(slow, goal)


@pytest.mark.parametrize("n_failing", [1, 5])
def test_a_task_that_fails_at_first_is_retried(n_failing: int) -> None:
    """It waits 1, 2, 4, ... picks between failures, then competes like any other."""
    curves = make_curves(0, n_failing=n_failing)

    _, picks = simulate(curves, gradient(curves))

    retried = [sequence for sequence, pick in enumerate(picks) if pick == (0, "retry")]
    assert len(retried) == n_failing
    waits = np.diff(retried) - 1
    assert waits.tolist() == [2**n for n in range(1, n_failing)]
    assert (0, "gradient") in picks[retried[-1] :]


def test_a_task_that_always_fails_costs_a_handful_of_rounds() -> None:
    """Back-off limits a failing task to about log2 of the picks."""
    curves = make_curves(0, n_failing=N_ROUNDS)

    _, picks = simulate(curves, gradient(curves))

    assert sum(task == 0 for task, _ in picks) <= 11


def test_every_task_is_picked_again() -> None:
    """After warm-up, each task with something to gain gets another round."""
    curves = make_curves(1)

    _, picks = simulate(curves, gradient(curves))

    assert [reason for _, reason in picks[:N_TASKS]] == ["warm_up"] * N_TASKS
    assert {task for task, _ in picks[:N_TASKS]} == set(range(N_TASKS))
    assert {task for task, _ in picks[N_TASKS:]} == set(range(N_TASKS))
