"""Choose the task that the next round of trials goes to."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from scheduler.arrays import Floats, check_same_shape
from scheduler.decision import Decision, Reason
from scheduler.errors import SchedulerError
from scheduler.objectives import Objective
from scheduler.retry import choose_retry, retry_terms
from scheduler.state import TaskTable

# Costs below a tenth of the average are noise.
_MIN_COST = 0.1


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
            table: The tasks.
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
            return self._warm_up(table, n_trials)
        task = choose_retry(table)
        if task is not None:
            return Decision(task, n_trials, "retry", retry_terms(table, task))
        return self._greedy(table, sequence, n_trials)

    def gains(self, table: TaskTable) -> Floats:
        """Return the gain of a round on each task, shape (n_tasks,)."""
        estimate = self.estimator.estimate(table, self._objective_weight(table))
        return estimate.gain / self._costs(table)

    def _warm_up(self, table: TaskTable, n_trials: int) -> Decision:
        priority = table.weights * table.flop
        task = int(np.argmax(np.where(table.unseen, priority, -1.0)))
        n_trials = min(n_trials, self.settings.warmup_trials or n_trials)
        return Decision(task, n_trials, "warm_up", {"priority": float(priority[task])})

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
