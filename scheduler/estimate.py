"""Estimate a network's latency, where it is spent, and when a job will end."""

import numpy as np

from scheduler.arrays import Floats, Ints, as_counts, as_floats, check_same_shape
from scheduler.budget import Budget


def weighted_latencies(weights: Ints, best_secs: Floats) -> Floats:
    """Multiply latencies by weights, seconds, shape (n_tasks,); weight 0 costs 0 even at inf."""
    weights = as_counts("weights", weights)
    best_secs = as_floats("best_secs", best_secs)
    check_same_shape(weights=weights, best_secs=best_secs)
    used = weights > 0
    return np.multiply(weights, best_secs, out=np.zeros(len(weights)), where=used)


def total_latency(weights: Ints, best_secs: Floats) -> float:
    """Add up the network's latency, seconds; inf while a task it uses never ran."""
    return float(weighted_latencies(weights, best_secs).sum())


def shares(weights: Ints, best_secs: Floats) -> Floats:
    """Split the latency known so far over the tasks.

    Args:
        weights: Occurrences in the network, shape (n_tasks,).
        best_secs: Best latency so far, seconds, shape (n_tasks,); inf if nothing ran.

    Returns:
        Fractions, shape (n_tasks,), adding up to 1; 0 where nothing ran, and all 0
        where nothing ran at all.
    """
    known = weighted_latencies(weights, best_secs)
    known = np.where(np.isfinite(known), known, 0.0)
    total = float(known.sum())
    return known / total if total > 0.0 else known


def gflops(flop: float, secs: float | None) -> float:
    """Return billions of operations a second; 0 while the latency is unknown."""
    return flop / secs / 1e9 if secs is not None and 0.0 < secs < float("inf") else 0.0


def eta_secs(budget: Budget, *, spent_trials: int, spent_secs: float) -> float:
    """Estimate when a job ends at its pace so far, whichever limit comes first.

    Returns:
        Seconds from now, at least 0; inf if there is no time limit and no pace yet.
    """
    limits = [float("inf")]
    if budget.secs is not None:
        limits.append(budget.secs - spent_secs)
    remaining = budget.remaining_trials(spent_trials)
    if remaining is not None and spent_trials > 0 and (spent_secs > 0.0 or remaining == 0):
        limits.append(remaining * spent_secs / spent_trials)
    return max(min(limits), 0.0)
