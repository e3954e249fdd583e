"""Estimates of a network's latency, its split over tasks, and the end of a job."""

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
    """Return the latency of the network, seconds; inf while one of its tasks never ran."""
    return float(weighted_latencies(weights, best_secs).sum())


def shares(weights: Ints, best_secs: Floats) -> Floats:
    """Return the fraction of the known latency that each task contributes.

    Args:
        weights: Occurrences in the network, shape (n_tasks,).
        best_secs: Best latency so far, seconds, shape (n_tasks,); inf if nothing ran.

    Returns:
        Fractions, shape (n_tasks,), with the sum 1; 0 where nothing ran, and all 0 if
        nothing ran at all.
    """
    known = weighted_latencies(weights, best_secs)
    known = np.where(np.isfinite(known), known, 0.0)
    total = float(known.sum())
    return known / total if total > 0.0 else known


def gflops(flop: float, secs: float | None) -> float:
    """Return billions of operations per second; 0 while the latency is unknown."""
    return flop / secs / 1e9 if secs is not None and 0.0 < secs < float("inf") else 0.0


def eta_secs(budget: Budget, *, spent_trials: int, spent_secs: float) -> float:
    """Estimate the time until the first limit of a job is reached at its present pace.

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
