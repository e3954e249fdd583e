"""Latency curves of many tasks in flat arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

import numpy as np

from scheduler.arrays import Bools, Floats, Ints, as_counts, as_floats, check_same_shape
from scheduler.errors import SchedulerError


@dataclass(frozen=True, eq=False)
class Curves:
    """Best latency of each task after each of its rounds, tasks one after another.

    Attributes:
        best_secs: Best latency after each round, seconds, shape (n_points,); inf while
            nothing ran, never increasing within a task.
        n_trials: Trials spent on the task up to and including that round, shape (n_points,).
        offsets: Task i owns the points from offsets[i] to offsets[i + 1], shape (n_tasks + 1,).

    Raises:
        SchedulerError: If the shapes disagree, or a number is negative or NaN.
    """

    best_secs: Floats
    n_trials: Ints
    offsets: Ints

    def __post_init__(self) -> None:
        offsets = np.asarray(self.offsets, dtype=np.int64)
        best_secs = np.asarray(self.best_secs, dtype=np.float64)
        n_trials = np.asarray(self.n_trials)
        n_points = len(best_secs)
        if offsets.ndim != 1 or len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != n_points:
            raise SchedulerError(f"offsets must lead from 0 to {n_points}, got {offsets}")
        if (np.diff(offsets) < 0).any():
            raise SchedulerError(f"offsets must not fall, got {offsets}")
        check_same_shape(best_secs=best_secs, n_trials=n_trials)
        if n_points:
            best_secs = as_floats("best_secs", best_secs)
            n_trials = as_counts("n_trials", n_trials)
        object.__setattr__(self, "best_secs", best_secs)
        object.__setattr__(self, "n_trials", n_trials)
        object.__setattr__(self, "offsets", offsets)

    @classmethod
    def of(
        cls, best_secs: Sequence[Sequence[float]], n_trials: Sequence[Sequence[int]]
    ) -> "Curves":
        """Join one list of points per task; ``n_trials`` are those of each round alone.

        Raises:
            SchedulerError: If the numbers of latencies and rounds of a task differ.
        """
        lengths, n_rounds = list(map(len, best_secs)), list(map(len, n_trials))
        if lengths != n_rounds:
            raise SchedulerError(f"tasks have {lengths} latencies and {n_rounds} rounds")
        return cls(
            np.array([*chain.from_iterable(best_secs)], dtype=np.float64),
            np.array([*chain.from_iterable(map(accumulate, n_trials))], dtype=np.int64),
            np.array([0, *accumulate(lengths)]),
        )

    @property
    def n_tasks(self) -> int:
        """Number of curves."""
        return len(self.offsets) - 1

    @cached_property
    def owners(self) -> Ints:
        """Task of each point, shape (n_points,)."""
        return np.repeat(np.arange(self.n_tasks), np.diff(self.offsets))

    @cached_property
    def follows(self) -> Bools:
        """True for points after a valid latency of the same task, shape (n_points,).

        The first success of a task does not count as progress.
        """
        known = np.isfinite(self.best_secs)
        follows = np.zeros(len(known), np.bool_)
        follows[1:] = known[:-1]
        follows[self.offsets[:-1][np.diff(self.offsets) > 0]] = False
        return follows

    def rounds_ago(self) -> Ints:
        """Count the task's rounds after each point, shape (n_points,)."""
        lengths = np.diff(self.offsets)
        ages: Ints = np.repeat(self.offsets[1:], lengths) - np.arange(1, len(self.best_secs) + 1)
        return ages

    def add_up(self, values: Floats) -> Floats:
        """Sum values of points over each task, shape (n_tasks,)."""
        sums = np.zeros(self.n_tasks)
        filled = np.diff(self.offsets) > 0
        if filled.any():
            sums[filled] = np.add.reduceat(values, self.offsets[:-1][filled])
        return sums

    def last(self, values: Floats, missing: float) -> Floats:
        """Return the value of each task's last point, shape (n_tasks,)."""
        last = np.full(self.n_tasks, missing)
        filled = np.diff(self.offsets) > 0
        last[filled] = values[self.offsets[1:][filled] - 1]
        return last
