"""State of one task: its rounds, and the features that the scheduler derives from them."""

import math
from bisect import insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from records.tuning.rounds import RoundResult
from scheduler.gradient import GradientSettings
from scheduler.state import stale_rounds, window_of

_WINDOW = GradientSettings().backward_window
# Seconds to search and build a trial on two cores, runs of a candidate, and seconds that a hanging
# one costs: rough figures, sufficient for tasks that differ by much.
_PREPARATION_SECS = 0.25
_RUNS_PER_TRIAL = 5
_TIMEOUT_SECS = 20.0


class TaskFeatures(NamedTuple):
    """Features of one task in the scheduler's table; see :class:`scheduler.state.TaskTable`.

    Attributes:
        curve: Best latency after each round, seconds.
        trials: Trials of each round.
        best_secs: Best latency, seconds; inf before anything ran.
        window_secs: Best latency a few rounds ago, seconds.
        n_failed: Number of trials without a latency.
        n_failed_rounds: Number of rounds at the end in which nothing ran.
        n_stale_rounds: Number of rounds at the end without progress.
        last_pick: Id of the latest pick; 0 if there is none.
        picks: Ids of all picks, in ascending order.
        alive: False once a search found no further candidates.
        secs_per_trial: Estimated seconds that a trial takes; 0 before the first.
    """

    curve: tuple[float, ...]
    trials: tuple[int, ...]
    best_secs: float
    window_secs: float
    n_rounds: int
    n_trials: int
    n_failed: int
    n_failed_rounds: int
    n_stale_rounds: int
    last_pick: int
    picks: tuple[int, ...]
    alive: bool
    secs_per_trial: float


@dataclass
class TaskState:
    """One task as its records have it.

    Attributes:
        rounds: Rounds in the order of their picks, each with the best of its own trials; the
            records that no pick paid for form the first.
        latency: Latency of the best record, seconds; inf if there is none.
        failed: Ids of the picks whose search failed.
        origin: Source that proposed the best record; empty if unknown.
        cached_features: Features as of the last call of :meth:`features`; None since a change.
    """

    rounds: list[RoundResult]
    latency: float = math.inf
    failed: set[int] = field(default_factory=set)
    origin: str = ""
    cached_features: TaskFeatures | None = None

    def features(self) -> TaskFeatures:
        """Return the features that follow from the rounds."""
        if self.cached_features is None:
            self.cached_features = (
                _derive_features(self.rounds, self.failed, self.latency)
                if self.rounds
                else _UNTRIED
            )
        return self.cached_features

    def put(self, result: RoundResult) -> None:
        """Add a round, or replace an earlier result of it."""
        self.cached_features = None
        for index in range(len(self.rounds) - 1, -1, -1):
            if self.rounds[index].pick_id == result.pick_id:
                self.rounds[index] = result
                return
        insort(self.rounds, result, key=lambda other: other.pick_id or 0)

    def round_of(self, pick_id: int) -> RoundResult:
        """Return the round of a pick; an empty one if it has no trial."""
        for result in reversed(self.rounds):
            if result.pick_id == pick_id:
                return result
        return RoundResult(pick_id, 0, 0, math.inf)

    def fail(self, pick_id: int) -> None:
        """Note that the search of a pick failed."""
        self.failed.add(pick_id)
        self.cached_features = None


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
            {result.pick_id for result in rounds if result.pick_id in failed},
        )
        for task_id, rounds in histories.items()
    }


def _derive_features(
    rounds: Sequence[RoundResult], failed: set[int], latency: float
) -> TaskFeatures:
    history = _with_running_best(rounds, latency)
    curve = tuple(result.best_secs for result in history)
    latencies = np.array(curve)
    # Imported records come first; they do not count in the rounds since another task's pick.
    picks = tuple(result.pick_id for result in history if result.pick_id is not None)
    streak = 0
    for result in reversed(history):
        if result.n_trials > result.n_failed:
            break
        streak += 1
    return TaskFeatures(
        curve=curve,
        trials=tuple(result.n_trials for result in history),
        best_secs=curve[-1] if curve else math.inf,
        window_secs=window_of(latencies, _WINDOW),
        n_rounds=len(history),
        n_trials=sum(result.n_trials for result in history),
        n_failed=sum(result.n_failed for result in history),
        n_failed_rounds=streak,
        n_stale_rounds=stale_rounds(latencies),
        last_pick=max(picks, default=0),
        picks=picks,
        alive=not (history and is_exhausted(history[-1].pick_id, history[-1].n_trials, failed)),
        secs_per_trial=_secs_per_trial(history),
    )


def _with_running_best(rounds: Sequence[RoundResult], latency: float) -> list[RoundResult]:
    """Return the rounds, each with the best latency up to it.

    Latencies below that of the best record were lucky: a final has measured them again since.
    """
    lowest = latency if math.isfinite(latency) else 0.0
    best, history = math.inf, []
    for result in rounds:
        best = min(best, result.best_secs)
        history.append(result._replace(best_secs=max(best, lowest)))
    return history


def _secs_per_trial(history: Sequence[RoundResult]) -> float:
    """Estimate the seconds that a trial of a task takes; 0 before the first.

    The estimate depends on the records alone and not on the clock, so that a resumed job decides
    as the interrupted one would have.
    """
    n_trials = sum(result.n_trials for result in history)
    if not n_trials:
        return 0.0
    running = _RUNS_PER_TRIAL * sum(result.run_secs for result in history)
    waiting = _TIMEOUT_SECS * sum(result.n_timeouts for result in history)
    return _PREPARATION_SECS + (running + waiting) / n_trials


def is_exhausted(pick_id: int | None, n_trials: int, failed: Collection[int]) -> bool:
    """Return whether the last round of a task searched and found no new candidate to try.

    Args:
        pick_id: Pick of the round; None for imported records, which no search found.
        failed: Picks whose search failed; those are tried again.
    """
    return pick_id is not None and not n_trials and pick_id not in failed


# Most tasks of a new job are untried, and its first pick needs the features of all.
_UNTRIED = _derive_features((), set(), math.inf)
