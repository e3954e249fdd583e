"""Replay of an allocator on recorded curves, without a device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from scheduler.allocator import Allocator
from scheduler.arrays import Floats, Ints
from scheduler.errors import SchedulerError
from scheduler.estimate import total_latency
from scheduler.forecasts.curves import Curves
from scheduler.gradient import GradientSettings
from scheduler.state import TaskTable, stale_rounds, window_of

_WINDOW = GradientSettings().backward_window


@dataclass(frozen=True)
class RecordedTask:
    """The measurements of one task, round by round.

    Attributes:
        name: Display name.
        weight: Occurrences in the network.
        flop: Floating-point operations of one execution.
        group: Group of similar tasks.
        n_trials: Trials of each round, at least 0.
        best_secs: Best latency after each round, seconds; inf while nothing ran.
        secs: Device time of each round, seconds.
        roof_secs: Latency that no kernel of the task can beat, seconds; 0 if unknown.
    """

    name: str
    weight: int
    flop: float
    group: str
    n_trials: tuple[int, ...]
    best_secs: tuple[float, ...]
    secs: tuple[float, ...]
    roof_secs: float = 0.0

    def __post_init__(self) -> None:
        if not len(self.n_trials) == len(self.best_secs) == len(self.secs):
            raise SchedulerError(
                f"task {self.name} has {len(self.n_trials)} rounds, {len(self.best_secs)} "
                f"latencies and {len(self.secs)} times"
            )
        if self.weight < 0 or not 0.0 <= self.flop < float("inf"):
            raise SchedulerError(
                f"task {self.name} has weight {self.weight} and {self.flop} operations"
            )
        if not all(secs >= 0.0 for secs in (*self.best_secs, *self.secs, self.roof_secs)):
            raise SchedulerError(f"task {self.name} has times that are negative or not numbers")
        if any(after > before for before, after in pairwise(self.best_secs)):
            raise SchedulerError(f"the best latency of task {self.name} rises")
        if any(n < 0 for n in self.n_trials):
            raise SchedulerError(f"task {self.name} has a round of {min(self.n_trials)} trials")


@dataclass(frozen=True)
class Recording:
    """The curves of a network's tasks; ``origin`` says when, where and how they were measured."""

    network: str
    tasks: tuple[RecordedTask, ...]
    origin: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tasks:
            raise SchedulerError(f"the recording of {self.network} has no task")

    @property
    def weights(self) -> Ints:
        """Occurrences, shape (n_tasks,)."""
        return np.array([task.weight for task in self.tasks], dtype=np.int64)

    @property
    def final_secs(self) -> float:
        """Total latency after every recorded round, seconds."""
        best = np.array([task.best_secs[-1] if task.best_secs else np.inf for task in self.tasks])
        return total_latency(self.weights, best)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The course of a replayed job, arrays of shape (n_picks,).

    Attributes:
        picks: Task of each pick.
        trials: Trials spent, including this pick's.
        secs: Device time spent, seconds.
        total_latency_secs: Total latency after the pick, seconds; inf while a task has none.
    """

    picks: Ints
    trials: Ints
    secs: Floats
    total_latency_secs: Floats

    def reach(self, goal_secs: float) -> tuple[float, float]:
        """Return the trials and device seconds until the total reaches the goal; inf if never."""
        reached = np.flatnonzero(
            (self.total_latency_secs <= goal_secs) & np.isfinite(self.total_latency_secs)
        )
        if not reached.size:
            return float("inf"), float("inf")
        first = int(reached[0])
        return float(self.trials[first]), float(self.secs[first])


MakeAllocator = Callable[[Ints], Allocator]


def replay(
    recording: Recording, make: MakeAllocator, *, max_trials: int | None = None
) -> Trajectory:
    """Let an allocator spend the recorded rounds.

    A pick spends the next recorded round of its task. A task whose rounds are all spent is
    exhausted, as in a job.

    Args:
        recording: The curves.
        make: Function that builds the allocator from the tasks' weights, shape (n_tasks,).
        max_trials: Budget; None: until every round is spent. A recorded round cannot be
            split, so the last one may exceed the budget.
    """
    state = _State(recording)
    allocator = make(recording.weights)
    rows: list[tuple[int, int, float, float]] = []
    round_size = state.round_size()
    trials, secs = 0, 0.0
    while max_trials is None or trials < max_trials:
        table = state.table()
        decision = allocator.choose(table, sequence=len(rows), n_trials=round_size)
        if decision is None:
            break
        round_trials, round_secs = state.spend(decision.task)
        trials, secs = trials + round_trials, secs + round_secs
        rows.append((decision.task, trials, secs, total_latency(state.weights, state.best_secs)))
    picks, trial_counts, times, totals = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Trajectory(
        np.array(picks, dtype=np.int64),
        np.array(trial_counts, dtype=np.int64),
        np.array(times, dtype=np.float64),
        np.array(totals, dtype=np.float64),
    )


class _State:
    """Progress of a replayed job over the recorded arrays."""

    def __init__(self, recording: Recording) -> None:
        tasks = recording.tasks
        n_tasks = len(tasks)
        names = sorted({task.group for task in tasks})
        self._rows = np.arange(n_tasks)
        self._lengths = np.array([len(task.best_secs) for task in tasks])
        self._best = _padded([task.best_secs for task in tasks], np.inf)
        self._trials = np.cumsum(_padded([task.n_trials for task in tasks], 0), axis=1)
        self._spent = np.cumsum(_padded([task.secs for task in tasks], 0.0), axis=1)
        self._groups = np.array([names.index(task.group) for task in tasks])
        self._windows = np.array(
            [
                [window_of(row[: n + 1], _WINDOW) for n in range(self._best.shape[1])]
                for row in self._best
            ]
        )
        self._stale = np.array(
            [[stale_rounds(row[: n + 1]) for n in range(len(row))] for row in self._best]
        )
        self._flop = np.array([task.flop for task in tasks])
        self._roofs = np.array([task.roof_secs for task in tasks])
        self._since = np.zeros(n_tasks, np.int64)
        self.weights = recording.weights
        self.n_rounds = np.zeros(n_tasks, np.int64)
        self.best_secs = np.full(n_tasks, np.inf)

    def round_size(self) -> int:
        """Return the trials that a round may spend: those of the largest recorded round."""
        return max(int(np.diff(self._trials, axis=1, prepend=0).max(initial=1)), 1)

    def table(self) -> TaskTable:
        """Return the table that the allocator would receive."""
        n_trials = self._now(self._trials, 0).astype(np.int64)
        done = np.arange(self._best.shape[1]) < self.n_rounds[:, np.newaxis]
        never_ran = np.isinf(self.best_secs)
        return TaskTable(
            weights=self.weights,
            flop=self._flop,
            best_secs=self.best_secs.copy(),
            window_secs=self._now(self._windows, np.inf),
            n_rounds=self.n_rounds.copy(),
            n_trials=n_trials,
            n_failed_rounds=np.where(never_ran, self.n_rounds, 0),
            rounds_since_pick=self._since.copy(),
            alive=self.n_rounds < self._lengths,
            similarity_groups=self._groups,
            n_stale_rounds=self._now(self._stale, 0).astype(np.int64),
            secs_per_trial=self._now(self._spent, 0.0) / np.maximum(n_trials, 1),
            curves=Curves(
                self._best[done],
                self._trials[done].astype(np.int64),
                np.concatenate(([0], np.cumsum(self.n_rounds))),
            ),
            roof_secs=self._roofs,
        )

    def spend(self, task: int) -> tuple[int, float]:
        """Spend the next recorded round of a task, and return its trials and seconds."""
        n = int(self.n_rounds[task])
        if n >= self._lengths[task]:
            raise SchedulerError(f"task {task} was picked after its last round")
        self.best_secs[task] = self._best[task, n]
        self.n_rounds[task] += 1
        self._since += 1
        self._since[task] = 0
        before = (self._trials[task, n - 1], self._spent[task, n - 1]) if n else (0, 0.0)
        return int(self._trials[task, n] - before[0]), float(self._spent[task, n] - before[1])

    def _now(self, values: Floats, missing: float) -> Floats:
        """Return the value after the latest round of each task, shape (n_tasks,)."""
        latest = values[self._rows, np.maximum(self.n_rounds - 1, 0)]
        return np.where(self.n_rounds > 0, latest, missing)


def _padded(rows: Sequence[Sequence[float]], fill: float) -> Floats:
    """Stack rows of different lengths, shape (n_rows, longest and at least 1)."""
    table = np.full((len(rows), max(1, *map(len, rows))), fill)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table
