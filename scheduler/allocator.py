"""Choose the task that the next round of trials goes to, with the reasons."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from scheduler.arrays import Floats, Ints, check_same_shape
from scheduler.errors import SchedulerError
from scheduler.objectives import Objective
from scheduler.state import TaskTable

# Costs below a tenth of the average are noise.
_MIN_COST = 0.1

_MAX_DOUBLINGS = 40

Reason = Literal["warm_up", "gradient", "tvm", "epsilon", "retry", "round_robin"]


@dataclass(frozen=True)
class Decision:
    """A decision to spend a round on a task.

    Attributes:
        task: Row of the task in the table.
        n_trials: Trials the round may spend.
        reason: Rule that picked the task.
        terms: Every number that the rule used, finite and JSON-able. ``warm_up``: priority
            (weight x flop). ``retry``: n_failed_rounds, rounds_since_pick, backoff.
            ``round_robin``: n_rounds. ``gradient`` and ``tvm``: backward, optimistic and
            similarity (seconds per round), roof (seconds of one call). ``epsilon``: those of the
            estimator. All three: objective_weight, gain, cost (of a trial, relative to the average
            task's), epsilon_draw, and, if another task could be picked, runner_up (its row) and
            runner_up_gain (gain / cost).
    """

    task: int
    n_trials: int
    reason: Reason
    terms: dict[str, float] = field(default_factory=dict)


def backoff(n_failed_rounds: Ints) -> Ints:
    """Return the picks of other tasks to wait for: 1, 2, 4, 8, ... after 1, 2, 3, 4 failures."""
    doublings = np.clip(n_failed_rounds - 1, 0, _MAX_DOUBLINGS)
    return np.left_shift(np.int64(1), doublings)


def choose_retry(table: TaskTable) -> int | None:
    """Choose the failed task that is due for another round.

    The most overdue task goes first; ties go to the lowest index. While some task has a
    gradient, a retry never directly follows a failed round, so that retries use at most every
    second pick however many tasks fail. Otherwise the task nearest to being due is chosen. A
    task with a round in flight waits for its end.

    Returns:
        Its row; None if no failed task is due.
    """
    failed = table.failed
    waiting = failed & ~table.in_flight
    if not waiting.any():
        return None
    overdue = table.rounds_since_pick - backoff(table.n_failed_rounds)
    task = int(np.argmax(np.where(waiting, overdue, np.iinfo(np.int64).min)))
    if not table.measured.any():
        return task
    just_failed = bool((failed & (table.rounds_since_pick == 0)).any())
    return task if overdue[task] >= 0 and not just_failed else None


def retry_terms(table: TaskTable, task: int) -> dict[str, float]:
    """Return the terms of a retry decision."""
    return {
        "n_failed_rounds": float(table.n_failed_rounds[task]),
        "rounds_since_pick": float(table.rounds_since_pick[task]),
        "backoff": float(backoff(table.n_failed_rounds)[task]),
    }


@dataclass(frozen=True)
class GreedySettings:
    """Settings of a greedy allocator.

    Attributes:
        epsilon: Probability of a uniform pick, from 0 to 1.
        warmup_trials: Maximum trials of a warm-up round; None: as in any other round.
        cost_aware: True to compare gains per second of device time, False per round.

    Raises:
        SchedulerError: If a value lies outside its range.
    """

    epsilon: float = 0.05
    warmup_trials: int | None = None
    cost_aware: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.epsilon <= 1.0:
            raise SchedulerError(f"epsilon must lie in [0, 1], got {self.epsilon}")
        if self.warmup_trials is not None and self.warmup_trials < 1:
            raise SchedulerError(f"warmup_trials must be at least 1, got {self.warmup_trials}")


class Allocator(Protocol):
    """A policy that spends a job's budget, one round at a time.

    A decision is a pure function of the arguments and of the parameters of the allocator: a
    resumed job that asks again with the same table and sequence gets the same decision. Dead
    tasks are never chosen. Ties go to the lowest row.
    """

    def choose(self, table: TaskTable, *, sequence: int, n_trials: int) -> Decision | None:
        """Pick a task for the next round.

        Args:
            table: State of the tasks according to the committed records.
            sequence: Number of this pick within its job, from 0.
            n_trials: Trials the round may spend, already within the budget, at least 1.

        Returns:
            The decision, of at most ``n_trials``; None if no task is alive, or none can be
            picked before a round in flight ends.

        Raises:
            SchedulerError: If ``sequence`` is negative or ``n_trials`` below 1.
        """


class Estimate(Protocol):
    """The expected gain of a round on each task; see :class:`Estimator`."""

    @property
    def gain(self) -> Floats:
        """Units of the objective that one more round saves, at least 0, shape (n_tasks,)."""

    def row(self, task: int) -> dict[str, float]:
        """Return every term of one task by name."""


class Estimator(Protocol):
    """A method of estimating the gain of a round on each task.

    Implementations are pure. A task that is dead, unseen or without a valid latency has a
    gain of 0.
    """

    @property
    def reason(self) -> Reason:
        """Reason stored with picks by this estimate."""

    def estimate(self, table: TaskTable, objective_weight: Floats) -> Estimate:
        """Estimate the gain of a round on each task.

        Args:
            objective_weight: df/dg, shape (n_tasks,).
        """


@dataclass(frozen=True)
class GreedyAllocator:
    """Spends each round where the objective is expected to fall most.

    First one warm-up round per task, largest weight x flop first; then any failed task
    that is due; then, with probability ``epsilon``, a uniform pick among tasks with a positive
    gain, else the largest gain. Where the table has the cost of a trial on each task, gains
    are per second of device time, scaled so that a task of average cost keeps its gain. If no
    task can lower the objective any further, there is no pick.

    Attributes:
        settings: Warm-up, epsilon and cost.
        estimator: Estimator of gains.
        objective: Function to minimise, over the same tasks as the tables.
        seed: Seed of the job, at least 0.
    """

    settings: GreedySettings
    estimator: Estimator
    objective: Objective
    seed: int

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise SchedulerError(f"seed must be at least 0, got {self.seed}")

    def choose(self, table: TaskTable, *, sequence: int, n_trials: int) -> Decision | None:
        """Apply the rules above, in their order."""
        check_pick(sequence, n_trials)
        if not table.alive.any():
            return None
        if table.unseen.any():
            priority = table.weights * table.flop
            first = int(np.argmax(np.where(table.unseen, priority, -1.0)))
            n_trials = min(n_trials, self.settings.warmup_trials or n_trials)
            return Decision(first, n_trials, "warm_up", {"priority": float(priority[first])})
        task = choose_retry(table)
        if task is not None:
            return Decision(task, n_trials, "retry", retry_terms(table, task))
        return self._greedy(table, sequence, n_trials)

    def gains(self, table: TaskTable) -> Floats:
        """Return the gain of a round on each task, shape (n_tasks,)."""
        estimate = self.estimator.estimate(table, self._objective_weight(table))
        return estimate.gain / self._costs(table)

    def _greedy(self, table: TaskTable, sequence: int, n_trials: int) -> Decision | None:
        weight = self._objective_weight(table)
        relevant = table.measured & (weight > 0.0)
        if not relevant.any():
            return None
        estimate = self.estimator.estimate(table, weight)
        costs = self._costs(table)
        ranked = np.where(relevant, estimate.gain / costs, -1.0)
        generator = np.random.default_rng([self.seed, sequence])
        draw = float(generator.random())
        promising = np.flatnonzero(ranked > 0.0)
        explore = draw < self.settings.epsilon and promising.size > 0
        task = int(generator.choice(promising) if explore else np.argmax(ranked))
        numbers = {
            **estimate.row(task),
            "cost": float(costs[task]),
            "epsilon_draw": draw,
            **_runner_up(ranked, task),
        }
        return Decision(task, n_trials, "epsilon" if explore else self.estimator.reason, numbers)

    def _objective_weight(self, table: TaskTable) -> Floats:
        objective_weight = self.objective.at(table).gradient(table.best_secs)
        check_same_shape(table=table.best_secs, objective_weight=objective_weight)
        return objective_weight

    def _costs(self, table: TaskTable) -> Floats:
        """Return the cost of a trial relative to the average task's, 1 where it is unknown."""
        costs = np.ones(table.n_tasks)
        if table.secs_per_trial is None or not self.settings.cost_aware:
            return costs
        known = (table.secs_per_trial > 0.0) & np.isfinite(table.secs_per_trial)
        if known.any():
            mean = float(table.secs_per_trial[known].mean())
            costs[known] = np.maximum(table.secs_per_trial[known] / mean, _MIN_COST)
        return costs


def check_pick(sequence: int, n_trials: int) -> None:
    """Check the arguments of an allocator's ``choose``.

    Raises:
        SchedulerError: If ``sequence`` is negative or ``n_trials`` below 1.
    """
    if sequence < 0:
        raise SchedulerError(f"sequence must be at least 0, got {sequence}")
    if n_trials < 1:
        raise SchedulerError(f"n_trials must be at least 1, got {n_trials}")


def _runner_up(ranked: Floats, task: int) -> dict[str, float]:
    others = ranked.copy()
    others[task] = -1.0
    second = int(np.argmax(others))
    if others[second] < 0.0:
        return {}
    return {"runner_up": second, "runner_up_gain": float(others[second])}
