"""Limits of a check against measured turns."""

import math
from pathlib import Path

import pytest

from tuner.compile.gate import CheckRequest, Timing, latency_findings, median_interval


@pytest.mark.parametrize(("n", "rank"), [(1, 0), (5, 0), (6, 0), (9, 1), (10, 1), (40, 13)])
def test_the_interval_contains_the_median_in_95_of_100_checks(n: int, rank: int) -> None:
    """Its ends are order statistics of the smallest coverage of at least 95 %."""
    values = [float(value) for value in range(n)]

    low, high = median_interval(values[::-1])

    assert (low, high) == (rank, n - 1 - rank)
    outside = 2 * sum(math.comb(n, k) for k in range(rank + 1)) / 2**n
    assert outside <= 0.05 or rank == 0


@pytest.mark.parametrize(
    ("factors", "outcome"),
    [
        # Equal libraries, and one that is twice as slow, on a quiet machine.
        ([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01, 0.99, 1.0], "passed"),
        ([2.0, 2.01, 1.99, 2.0, 2.02, 1.98, 2.0, 2.01, 1.99, 2.0], "failed"),
        # One turn of ten that was disturbed changes nothing.
        ([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01, 0.99, 9.0], "passed"),
        ([1.0, 1.3, 0.7, 1.2, 1.02, 0.98, 1.4, 0.6, 0.99, 1.1], "undecided"),
    ],
)
def test_noise_is_told_from_a_slowdown(factors: list[float], outcome: str) -> None:
    """The interval of the ratios decides: above the limit, at or below it, or around it."""
    library = [(factor * 1e-3, factor * 1e-3) for factor in factors]
    baseline = [(1e-3, 1e-3)] * len(factors)
    request = CheckRequest(baseline=Path("old"), max_slowdown=0.03)

    (finding,) = latency_findings([library, baseline], request)

    assert (finding.name, finding.outcome) == ("slowdown", outcome)


def test_a_latency_has_one_definition() -> None:
    """The table shows the value that the limit applies to: the median over the turns."""
    turns = ((1e-3, 1e-3, 9e-3), (3e-3, 3e-3, 3e-3), (2e-3, 2e-3, 2e-3))
    timing = Timing("library", turns)

    (finding,) = latency_findings([turns], CheckRequest(max_secs=1.0))

    assert finding.value == timing.median_secs == 2e-3
    assert timing.runs_per_sec == pytest.approx(9 / 26e-3)
    assert timing.p90_secs <= timing.p99_secs <= 9e-3
