"""What is known of one task: its rounds, and everything that the scheduler derives from them."""

import math
from bisect import insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from records.rounds import RoundResult
from scheduler.gradient import GradientSettings
from scheduler.state import window_of

_WINDOW = GradientSettings().backward_window
# What the search and build of a trial take on two cores, how often a candidate runs, and what
# one that hangs costs: round figures, for tasks that differ by much.
_PREPARATION_SECS = 0.25
_RUNS_PER_TRIAL = 5
_TIMEOUT_SECS = 20.0


class TaskFeatures(NamedTuple):
    """A row of the scheduler's table, but for what belongs to the network; seconds."""

    curve: tuple[float, ...]
    trials: tuple[int, ...]
    best_secs: float
    window_secs: float
    n_rounds: int
    n_trials: int
    n_failed: int
    n_failed_rounds: int
    last_pick: int
    picks: tuple[int, ...]
    alive: bool
    secs_per_trial: float


@dataclass
class TaskState:
    """One task as its records have it.

    Attributes:
        rounds: By the order of their picks, each with the best of its own trials; that of
            records which no pick paid for comes first.
        latency: Of the best record, seconds; inf if there is none.
        failed: Picks whose search failed.
    """

    rounds: list[RoundResult]
    latency: float = math.inf
    failed: set[int] = field(default_factory=set)
    _derived: TaskFeatures | None = None

    def derived(self) -> TaskFeatures:
        """Return what follows from the rounds."""
        if self._derived is None:
            self._derived = _derive(self.rounds, self.failed)
        return self._derived

    def put(self, result: RoundResult) -> None:
        """Add a round, or replace it by what it came to since."""
        self._derived = None
        for index in range(len(self.rounds) - 1, -1, -1):
            if self.rounds[index].pick_id == result.pick_id:
                self.rounds[index] = result
                return
        insort(self.rounds, result, key=lambda each: each.pick_id or 0)

    def round_of(self, pick_id: int) -> RoundResult:
        """Return the round of a pick as far as it got."""
        for each in reversed(self.rounds):
            if each.pick_id == pick_id:
                return each
        return RoundResult(pick_id, 0, 0, math.inf)

    def fail(self, pick_id: int) -> None:
        """Note that the search of a pick failed."""
        self.failed.add(pick_id)
        self._derived = None


def states_of(
    histories: Mapping[int, Sequence[RoundResult]],
    latencies: Mapping[int, float],
    failed: set[int],
) -> dict[int, TaskState]:
    """Return the states of tasks by their rounds and best latencies."""
    return {
        task_id: TaskState(
            list(rounds),
            latencies.get(task_id, math.inf),
            {each.pick_id for each in rounds if each.pick_id in failed},
        )
        for task_id, rounds in histories.items()
    }


def _derive(rounds: Sequence[RoundResult], failed: set[int]) -> TaskFeatures:
    history = _running(rounds)
    curve = tuple(result.best_secs for result in history)
    # Those of no pick come first, and count for no other task.
    picks = tuple(r.pick_id for r in history if r.pick_id is not None)
    return TaskFeatures(
        curve=curve,
        trials=tuple(result.n_trials for result in history),
        best_secs=curve[-1] if curve else math.inf,
        window_secs=window_of(np.array(curve), _WINDOW),
        n_rounds=len(history),
        n_trials=sum(result.n_trials for result in history),
        n_failed=sum(result.n_failed for result in history),
        n_failed_rounds=_failed_streak(history),
        last_pick=max(picks, default=0),
        picks=picks,
        alive=not (history and is_exhausted(history[-1].pick_id, history[-1].n_trials, failed)),
        secs_per_trial=_secs_per_trial(history),
    )


def _running(rounds: Sequence[RoundResult]) -> list[RoundResult]:
    """What was better before stays the best."""
    best, history = math.inf, []
    for result in rounds:
        best = min(best, result.best_secs)
        history.append(replace(result, best_secs=best))
    return history


def _secs_per_trial(history: Sequence[RoundResult]) -> float:
    """Estimate what a trial of a task takes, seconds; 0 before the first.

    A function of the records alone, not of the clock: a resumed job decides alike.
    """
    n_trials = sum(result.n_trials for result in history)
    if not n_trials:
        return 0.0
    running = _RUNS_PER_TRIAL * sum(result.run_secs for result in history)
    waiting = _TIMEOUT_SECS * sum(result.n_timeouts for result in history)
    return _PREPARATION_SECS + (running + waiting) / n_trials


def _failed_streak(history: Sequence[RoundResult]) -> int:
    """Rounds at the end of a history in which nothing ran."""
    streak = 0
    for result in reversed(history):
        if result.n_trials > result.n_failed:
            break
        streak += 1
    return streak


def is_exhausted(pick_id: int | None, n_trials: int, failed: Collection[int]) -> bool:
    """Return whether the last round of a task searched and found no new candidate to try.

    Args:
        pick_id: Pick of the round; None for imported records, which no search found.
        n_trials: Trials of the round.
        failed: Picks whose search failed; those are tried again.
    """
    return pick_id is not None and not n_trials and pick_id not in failed
