"""Choose the task that the next round of trials goes to."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from scheduler.arrays import Floats, check_same_shape
from scheduler.decision import Decision
from scheduler.errors import SchedulerError
from scheduler.gradient import GradientSettings, GradientTerms, estimate_gradient
from scheduler.objectives import Objective
from scheduler.retry import choose_retry, retry_terms
from scheduler.state import TaskTable


class Allocator(Protocol):
    """A policy that spends a job's budget, one round at a time.

    A decision is a pure function of the arguments and of what the allocator was built
    with: a resumed job that asks again with the same table and sequence gets the same
    answer. Dead tasks are never chosen. Equal tasks: the lowest row wins.
    """

    def choose(self, table: TaskTable, *, sequence: int, n_trials: int) -> Decision | None:
        """Pick a task for the next round.

        Args:
            table: The tasks as the committed records have them.
            sequence: Number of this pick within its job, from 0.
            n_trials: Trials the round may spend, already within the budget, at least 1.

        Returns:
            The decision, of at most ``n_trials``; None if no task is alive.

        Raises:
            SchedulerError: If ``sequence`` is negative or ``n_trials`` below 1.
        """


@dataclass(frozen=True)
class GradientAllocator:
    """Spends each round where the objective is expected to fall most (OSDI'20, section 6.2).

    First one warm-up round per task, largest weight x flop first; then any failed task
    that is due; then, with chance ``epsilon``, a uniform pick among tasks with a positive
    gain, else the largest gain.

    Attributes:
        settings: Parameters of the estimate.
        objective: What to minimise, over the same tasks as the tables.
        seed: The job's seed, at least 0.
    """

    settings: GradientSettings
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

    def _warm_up(self, table: TaskTable, n_trials: int) -> Decision:
        priority = table.weights * table.flop
        task = int(np.argmax(np.where(table.unseen, priority, -1.0)))
        n_trials = min(n_trials, self.settings.warmup_trials or n_trials)
        return Decision(task, n_trials, "warm_up", {"priority": float(priority[task])})

    def _greedy(self, table: TaskTable, sequence: int, n_trials: int) -> Decision:
        terms = self._estimate(table)
        ranked = np.where(table.measured, terms.gain, -1.0)
        generator = np.random.default_rng([self.seed, sequence])
        draw = float(generator.random())
        promising = np.flatnonzero(ranked > 0.0)
        explore = draw < self.settings.epsilon and promising.size > 0
        task = int(generator.choice(promising) if explore else np.argmax(ranked))
        numbers = {**terms.row(task), "epsilon_draw": draw, **_runner_up(ranked, task)}
        return Decision(task, n_trials, "epsilon" if explore else "gradient", numbers)

    def _estimate(self, table: TaskTable) -> GradientTerms:
        objective_weight = self.objective.gradient(table.best_secs)
        check_same_shape(table=table.best_secs, objective_weight=objective_weight)
        return estimate_gradient(table, objective_weight, self.settings)


def check_pick(sequence: int, n_trials: int) -> None:
    """Check what every allocator is asked with.

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
