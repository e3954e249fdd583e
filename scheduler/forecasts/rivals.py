"""Division of a round on one task among rival variants of its computation.

A variant is another program for the same outputs; the fastest of all is the latency of the task.
Each variant has a curve of its own, whose forecast tells how likely it is to become the fastest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.forecasts.curves import Curves
from scheduler.forecasts.forecast import ForecastSettings, forecast

# Trials of a variant before its curve counts.
_FIRST_TRIALS = 2
# Probability of becoming the fastest below which a variant gets nothing.
_MIN_CHANCE = 0.05


@dataclass(frozen=True)
class Rival:
    """One of several variants of a task.

    Attributes:
        latencies: Latency of each of its trials, in order, seconds; inf for a failure.
        n_left: Candidates that it can still propose.
        roof_secs: Latency that it cannot beat, seconds; 0 if unknown.
    """

    latencies: Sequence[float]
    n_left: int
    roof_secs: float = 0.0

    @property
    def best_secs(self) -> float:
        """Best latency so far, seconds; inf if nothing ran."""
        return min(self.latencies, default=math.inf)


def divide_round(rivals: Sequence[Rival], n_trials: int) -> list[int]:
    """Divide the trials of a round.

    Every rival first gets a few trials, one after the other. What is left is divided in proportion
    to the chance that a rival becomes the fastest within this round: 1 for the present fastest, and
    for another that of its forecast latency, a normal variable, or 0 if its roof is too high. A
    rival that has failed only, or has a chance below 1 in 20, gets nothing.

    Args:
        rivals: At least one.
        n_trials: Trials of the round, at least 0.

    Returns:
        Trials of each rival; fewer than ``n_trials`` in sum if no rival that can win has more
        candidates.
    """
    shares = _first_trials(rivals, n_trials)
    chances = win_chances(rivals, n_trials)
    for _ in range(len(rivals)):
        left = n_trials - sum(shares)
        open_ = [i for i, rival in enumerate(rivals) if chances[i] and shares[i] < rival.n_left]
        if not left or not open_:
            break
        total = sum(chances[i] for i in open_)
        # The likeliest first, since fractions are rounded up.
        for i in sorted(open_, key=lambda i: -chances[i]):
            part = math.ceil(left * chances[i] / total)
            shares[i] += min(part, rivals[i].n_left - shares[i], n_trials - sum(shares))
    return shares


def win_chances(rivals: Sequence[Rival], n_trials: int) -> list[float]:
    """Return the chance of each rival to be the fastest after ``n_trials`` more trials of its own.

    Chances below 1 in 20 are 0. If nothing ran, the first rival has chance 1.
    """
    bests = [rival.best_secs for rival in rivals]
    fastest = min(range(len(rivals)), key=bests.__getitem__)
    if math.isinf(bests[fastest]):
        return [float(i == 0) for i in range(len(rivals))]
    curves = Curves.of(
        [np.minimum.accumulate(rival.latencies).tolist() for rival in rivals],
        [[1] * len(rival.latencies) for rival in rivals],
    )
    saving, spread = forecast(curves, ForecastSettings()).savings(n_trials)
    chances = []
    for i, rival in enumerate(rivals):
        if i == fastest:
            chance = 1.0
        elif math.isinf(bests[i]) or rival.roof_secs >= bests[fastest]:
            chance = 0.0
        else:
            ahead = bests[fastest] - (bests[i] - float(saving[i]))
            chance = 0.5 * math.erfc(-ahead / (math.sqrt(2.0) * max(float(spread[i]), 1e-30)))
        chances.append(chance if chance >= _MIN_CHANCE else 0.0)
    return chances


def _first_trials(rivals: Sequence[Rival], n_trials: int) -> list[int]:
    shares = [0] * len(rivals)
    for n_before in range(_FIRST_TRIALS):
        for i, rival in enumerate(rivals):
            is_new = len(rival.latencies) + shares[i] <= n_before
            if is_new and shares[i] < rival.n_left and sum(shares) < n_trials:
                shares[i] += 1
    return shares
