"""Fewest trials with which any rule could come near the final latency of a recording."""

import numpy as np

from scheduler.replay import RecordedTask, Recording

# Rounding of a sum must not make a goal unreachable.
_ROUNDING = 1e-12


def oracle_trials(recording: Recording, within: float) -> int:
    """Return the fewest trials, by a rule that knows all curves.

    Exact, by dynamic programming: the least total latency for every number of trials, task by
    task. Every task needs its first valid latency.

    Args:
        recording: The curves.
        within: Goal, as a fraction of the final latency above it.
    """
    least = np.zeros(1)
    for task in recording.tasks:
        trials = np.cumsum(task.n_trials)
        extended = np.full(len(least) + int(trials[-1]), np.inf)
        for spent, secs in zip(trials, task.best_secs, strict=True):
            if np.isfinite(secs):
                part = extended[spent : spent + len(least)]
                np.minimum(part, least + task.weight * secs, out=part)
        least = extended
    return int(np.flatnonzero(least <= _goal_secs(recording, within))[0])


def foresight_trials(recording: Recording, within: float) -> int:
    """Return the trials of a rule that knows the result of the next round of every task.

    It takes the round that saves most per trial, or a round of the largest task if none saves
    anything. A rule that sees further ahead can need fewer trials; none that forecasts can count
    on it.
    """
    n_rounds = [1] * len(recording.tasks)
    trials = sum(task.n_trials[0] for task in recording.tasks)
    while _total_secs(recording, n_rounds) > _goal_secs(recording, within):
        best = max(
            (i for i, task in enumerate(recording.tasks) if n_rounds[i] < len(task.n_trials)),
            key=lambda i: _priority(recording.tasks[i], n_rounds[i]),
        )
        trials += recording.tasks[best].n_trials[n_rounds[best]]
        n_rounds[best] += 1
    return trials


def _priority(task: RecordedTask, n_rounds: int) -> tuple[float, float]:
    now, then = task.best_secs[n_rounds - 1], task.best_secs[n_rounds]
    saving = task.weight * (now - then) / max(task.n_trials[n_rounds], 1)
    return saving, task.weight * now / n_rounds


def _total_secs(recording: Recording, n_rounds: list[int]) -> float:
    pairs = zip(recording.tasks, n_rounds, strict=True)
    return sum(task.weight * task.best_secs[n - 1] for task, n in pairs)


def _goal_secs(recording: Recording, within: float) -> float:
    return recording.final_secs * (1.0 + within) * (1.0 + _ROUNDING)
