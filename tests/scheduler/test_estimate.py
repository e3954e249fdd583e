"""Totals, shares and the estimated end of a job."""

import numpy as np
import pytest

from scheduler.budget import Budget
from scheduler.estimate import eta_secs, gflops, shares, total_latency

INF = float("inf")


@pytest.mark.parametrize(
    ("weights", "best_secs", "expected"),
    [
        ([2, 1], [1.5, 0.5], 3.5),
        ([2, 1], [1.5, INF], INF),
        ([2, 0], [1.5, INF], 3.0),  # the network does not use the missing one
    ],
)
def test_total_latency(weights: list[int], best_secs: list[float], expected: float) -> None:
    """The total is a weighted sum, and inf if a latency is missing."""
    assert total_latency(np.array(weights), np.array(best_secs)) == expected


@pytest.mark.parametrize(
    ("best_secs", "expected"),
    [
        ([1.0, 2.0, 4.0], [0.25, 0.25, 0.5]),
        ([1.0, INF, 6.0], [0.25, 0.0, 0.75]),
        ([INF, INF, INF], [0.0, 0.0, 0.0]),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    ],
)
def test_shares(best_secs: list[float], expected: list[float]) -> None:
    """Shares of the known latency, for weights 2, 1, 1."""
    assert shares(np.array([2, 1, 1]), np.array(best_secs)).tolist() == expected


@pytest.mark.parametrize(
    ("budget", "spent_trials", "spent_secs", "expected"),
    [
        (Budget(trials=100), 25, 50.0, 150.0),
        (Budget(trials=100), 0, 3.0, INF),
        (Budget(trials=100), 25, 0.0, INF),  # other jobs paid for those trials
        (Budget(trials=100), 100, 0.0, 0.0),
        (Budget(trials=100), 120, 50.0, 0.0),
        (Budget(trials=100, secs=60.0), 25, 50.0, 10.0),
        (Budget(secs=60.0), 0, 0.0, 60.0),
    ],
)
def test_eta(budget: Budget, spent_trials: int, spent_secs: float, expected: float) -> None:
    """The estimate uses the pace so far, or the time limit if that comes first."""
    assert eta_secs(budget, spent_trials=spent_trials, spent_secs=spent_secs) == expected


@pytest.mark.parametrize(("secs", "expected"), [(0.5, 4.0), (INF, 0.0), (0.0, 0.0), (None, 0.0)])
def test_gflops(secs: float | None, expected: float) -> None:
    """Throughput is 0 while the latency is unknown."""
    assert gflops(2e9, secs) == expected
