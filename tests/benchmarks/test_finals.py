"""The ranks of search and final are compared race by race."""

import pytest

from benchmarks.finals import Race, summarise


def test_ranks_and_winners_of_search_and_final_are_compared() -> None:
    """One race has the same order, the other a new winner and the opposite order."""
    same = Race(1, search=[1.0, 2.0, 3.0], final=[1.1, 2.1, 2.9])
    opposite = Race(10, search=[1.0, 2.0, 3.0], final=[3.0, 2.0, 1.0])
    pair = Race(1, search=[1.0, 2.0], final=[2.0, 1.0])

    summary = summarise([same, opposite, pair])

    assert summary["races"] == 3
    assert summary["new_winners"] == 2
    assert summary["mean_rank_correlation"] == pytest.approx(0.0)
    assert summary["search_winners_ms"] == pytest.approx(1e3 * (1.1 + 30.0 + 2.0))
    assert summary["final_winners_ms"] == pytest.approx(1e3 * (1.1 + 10.0 + 1.0))
    assert summarise([])["mean_rank_correlation"] is None
