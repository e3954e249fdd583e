"""State of every task of a job as the scheduler sees it."""

from dataclasses import dataclass, fields

import numpy as np

from scheduler.arrays import Bools, Floats, Ints, as_counts, as_flags, as_floats, check_same_shape
from scheduler.errors import SchedulerError
from scheduler.forecasts.curves import Curves

_FLOATS = ("flop", "best_secs", "window_secs")
_COUNTS = ("weights", "n_rounds", "n_trials", "n_failed_rounds", "rounds_since_pick")
_OPTIONAL_COUNTS = ("similarity_groups", "n_in_flight", "n_stale_rounds")
# Gains below this share of a latency are noise.
_MIN_GAIN = 0.01


@dataclass(frozen=True, eq=False)
class TaskTable:
    """One row per task, as arrays of shape (n_tasks,).

    Sequences are accepted and become arrays; arrays are kept, not copied.

    Attributes:
        weights: Occurrences in the network.
        flop: Floating-point operations of one execution, finite.
        best_secs: Best latency so far, seconds; inf if nothing ran.
        window_secs: Best latency ``backward_window`` rounds ago, seconds; see ``window_of``.
        n_rounds: Completed rounds.
        n_trials: Trials spent.
        n_failed_rounds: Latest consecutive rounds without a valid record.
        rounds_since_pick: Picks of other tasks since this one's last; 0 right after its own.
        alive: False once its search space is exhausted or it is finished.
        similarity_groups: Group of each task, from 0 to n_tasks - 1; None: one group per task.
        secs_per_trial: Duration of a trial, seconds; 0 where unknown; None: all unknown.
        n_in_flight: Rounds that were picked and have not ended; None: none.
        n_stale_rounds: Latest rounds without progress; see ``stale_rounds``; None: none.
        curves: Every round of every task; None: unknown, so that no forecast is possible.
        roof_secs: Latency that a task cannot beat, seconds; 0 where unknown; None: all unknown.

    Raises:
        SchedulerError: If an array is empty, holds negative or NaN entries, has the wrong
            kind of number, or disagrees in shape with the others.
    """

    weights: Ints
    flop: Floats
    best_secs: Floats
    window_secs: Floats
    n_rounds: Ints
    n_trials: Ints
    n_failed_rounds: Ints
    rounds_since_pick: Ints
    alive: Bools
    similarity_groups: Ints | None = None
    secs_per_trial: Floats | None = None
    n_in_flight: Ints | None = None
    n_stale_rounds: Ints | None = None
    curves: Curves | None = None
    roof_secs: Floats | None = None

    def __post_init__(self) -> None:
        for name in _FLOATS:
            self._replace(name, as_floats(name, getattr(self, name)))
        for name in _COUNTS:
            self._replace(name, as_counts(name, getattr(self, name)))
        self._replace("alive", as_flags("alive", self.alive))
        if self.secs_per_trial is not None:
            self._replace("secs_per_trial", as_floats("secs_per_trial", self.secs_per_trial))
        if self.roof_secs is not None:
            self._replace("roof_secs", as_floats("roof_secs", self.roof_secs))
        for name in _OPTIONAL_COUNTS:
            if getattr(self, name) is not None:
                self._replace(name, as_counts(name, getattr(self, name)))
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "curves"}
        check_same_shape(**{name: array for name, array in arrays.items() if array is not None})
        if self.curves is not None and self.curves.n_tasks != self.n_tasks:
            raise SchedulerError(f"{self.n_tasks} tasks have {self.curves.n_tasks} curves")
        if not np.isfinite(self.flop).all():
            raise SchedulerError(f"flop must be finite, got {self.flop.max()}")
        if self.similarity_groups is not None and self.similarity_groups.max() >= self.n_tasks:
            raise SchedulerError(
                f"similarity_groups must lie below n_tasks = {self.n_tasks}, "
                f"got {self.similarity_groups.max()}"
            )

    @property
    def n_tasks(self) -> int:
        """Number of rows."""
        return len(self.weights)

    @property
    def above_roof(self) -> Floats:
        """Seconds that a task can still save in a call, shape (n_tasks,); inf if nothing ran."""
        if self.roof_secs is None:
            return self.best_secs
        is_above = self.roof_secs < self.best_secs
        left = np.zeros(self.n_tasks)
        return np.subtract(self.best_secs, self.roof_secs, out=left, where=is_above)

    @property
    def unseen(self) -> Bools:
        """True for alive tasks that wait for their warm-up round, shape (n_tasks,)."""
        unseen: Bools = self.alive & (self.n_rounds == 0) & ~self.in_flight
        return unseen

    @property
    def in_flight(self) -> Bools:
        """True for tasks with a round in flight, shape (n_tasks,)."""
        if self.n_in_flight is None:
            return np.zeros(self.n_tasks, np.bool_)
        flying: Bools = self.n_in_flight > 0
        return flying

    @property
    def rounds_given(self) -> Ints:
        """Number of rounds completed or in flight, shape (n_tasks,)."""
        return self.n_rounds if self.n_in_flight is None else self.n_rounds + self.n_in_flight

    @property
    def measured(self) -> Bools:
        """True for alive tasks with a valid latency, which have a gradient, shape (n_tasks,)."""
        return self.alive & (self.n_rounds > 0) & np.isfinite(self.best_secs)

    @property
    def failed(self) -> Bools:
        """True for alive tasks with rounds but no valid latency, shape (n_tasks,)."""
        return self.alive & (self.n_rounds > 0) & ~np.isfinite(self.best_secs)

    def _replace(self, name: str, array: Bools | Floats | Ints) -> None:
        object.__setattr__(self, name, array)


def stale_rounds(history: Floats) -> int:
    """Return the number of rounds since a task was more than 1 % slower than now.

    Args:
        history: Best latency after each round, seconds, shape (n_rounds,); inf while nothing ran.
    """
    curve = np.asarray(history, dtype=np.float64)
    if not curve.size or np.isinf(curve[-1]):
        return 0
    return int(np.count_nonzero(curve <= (1.0 + _MIN_GAIN) * curve[-1])) - 1


def window_of(history: Floats, n_back: int) -> float:
    """Return the latency that a task had ``n_back`` rounds ago.

    A shorter history yields its first entry. Where nothing had run that long ago, the first
    later latency counts, so that the first success of a task does not count as progress.

    Args:
        history: Best latency after each round, seconds, shape (n_rounds,); inf while nothing ran.
        n_back: Rounds to look back, at least 1.

    Returns:
        Seconds; inf if nothing ran in the window.

    Raises:
        SchedulerError: If ``n_back`` is below 1.
    """
    if n_back < 1:
        raise SchedulerError(f"n_back must be at least 1, got {n_back}")
    window = np.asarray(history, dtype=np.float64)[-n_back - 1 :]
    valid = window[np.isfinite(window)]
    return float(valid[0]) if valid.size else float("inf")
