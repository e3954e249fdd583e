"""Budgets of jobs, and the trials that count as spent."""

from dataclasses import dataclass

import numpy as np

from scheduler.arrays import Bools, Ints, as_counts, as_flags, check_same_shape
from scheduler.errors import SchedulerError

_MIN_ROUND, _MAX_ROUND = 4, 64
_ROUNDS_PER_TASK = 4


@dataclass(frozen=True)
class Budget:
    """Limits of a job in trials, seconds, or both; the first one reached ends it.

    Attributes:
        trials: Maximum trials, at least 1; None: unlimited.
        secs: Maximum wall time, seconds, above 0 and finite; None: unlimited.

    Raises:
        SchedulerError: If a limit lies outside its range, or both are None.
    """

    trials: int | None = None
    secs: float | None = None

    def __post_init__(self) -> None:
        if self.trials is None and self.secs is None:
            raise SchedulerError("a budget needs trials, secs, or both; got neither")
        if self.trials is not None and self.trials < 1:
            raise SchedulerError(f"trials must be at least 1, got {self.trials}")
        if self.secs is not None and not 0.0 < self.secs < float("inf"):
            raise SchedulerError(f"secs must be finite and above 0, got {self.secs}")

    def remaining_trials(self, spent_trials: int) -> int | None:
        """Return the remaining trials, at least 0; None if trials are not limited."""
        return None if self.trials is None else max(self.trials - spent_trials, 0)

    def exhausted(self, spent_trials: int, spent_secs: float) -> bool:
        """Return whether any limit is reached."""
        out_of_time = self.secs is not None and spent_secs >= self.secs
        return out_of_time or self.remaining_trials(spent_trials) == 0

    def round_size(self, trials_per_round: int, spent_trials: int) -> int:
        """Return the trials of the next round: a full round, or the remaining trials.

        Raises:
            SchedulerError: If ``trials_per_round`` is below 1.
        """
        if trials_per_round < 1:
            raise SchedulerError(f"trials_per_round must be at least 1, got {trials_per_round}")
        remaining = self.remaining_trials(spent_trials)
        return trials_per_round if remaining is None else min(trials_per_round, remaining)


def default_trials_per_round(budget_trials: int, n_tasks: int) -> int:
    """Return a round size that gives the average task four rounds, within 4 to 64 trials.

    Raises:
        SchedulerError: If either count is below 1.
    """
    if budget_trials < 1 or n_tasks < 1:
        raise SchedulerError(
            f"budget_trials and n_tasks must be at least 1, got {budget_trials} and {n_tasks}"
        )
    return min(max(budget_trials // (_ROUNDS_PER_TASK * n_tasks), _MIN_ROUND), _MAX_ROUND)


def credited_trials(own: Ints, others: Ints, budget: int, *, settled: Bools | None = None) -> int:
    """Count how many trials of a job's budget count as spent.

    Every trial of the job itself counts. A trial that another job spent on a task counts only
    up to the task's fair share, budget // n_tasks, less the job's own trials on the task:
    task i counts max(own, min(own + others, share)). The budget % n_tasks trials that an
    even split leaves over increase the share of that many tasks by one, those where other
    jobs spent more than the share. Thus one intensively tuned task cannot use up the budget
    of the rest. A settled task counts at least its share, however few trials it took, because
    jobs spend unevenly and the task was tuned within a budget of the same size.

    The result is at least sum(own), never falls when a trial is added or a task settles,
    and exceeds ``budget`` by no more than the job's own trials beyond shares. An own trial
    on a task that others tuned may replace their credit instead of adding to it; the job
    still ends after ``budget`` own trials, since those all count.

    Args:
        own: Trials of the job per task, shape (n_tasks,).
        others: Trials of other jobs per task, shape (n_tasks,).
        budget: Budget of the job, trials, at least 1.
        settled: True for tasks that need no part of this budget, because others tuned them
            as deeply or exhausted them, shape (n_tasks,); None: no task.

    Returns:
        Number of trials; the job is done once it reaches ``budget``.

    Raises:
        SchedulerError: If a count is negative, shapes disagree, or ``budget`` is below 1.
    """
    own, others = as_counts("own", own), as_counts("others", others)
    settled = as_flags("settled", np.zeros(own.shape, bool) if settled is None else settled)
    check_same_shape(own=own, others=others, settled=settled)
    if budget < 1:
        raise SchedulerError(f"budget must be at least 1, got {budget}")
    share, left_over = divmod(budget, len(own))
    received = np.where(settled, np.maximum(own + others, share + 1), own + others)
    credit = np.maximum(own, np.minimum(received, share))
    n_widened = min(left_over, int(((received > share) & (own <= share)).sum()))
    return int(credit.sum()) + n_widened
