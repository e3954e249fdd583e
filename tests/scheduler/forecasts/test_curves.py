"""Sums, ages and last points of curves, including empty ones."""

from typing import Any

import numpy as np
import pytest

from scheduler.errors import SchedulerError
from scheduler.forecasts.curves import Curves

INF = float("inf")


@pytest.fixture
def mixed() -> Curves:
    """Curves with empty tasks at every position, one that fails at first, and one single point."""
    return Curves.of([[], [INF, 4.0, 2.0], [], [5.0], []], [[], [8, 4, 2], [], [16], []])


def test_trials_of_rounds_add_up_within_each_task(mixed: Curves) -> None:
    """Lists become flat arrays with the bounds of each task."""
    assert mixed.n_tasks == 5
    assert mixed.best_secs.tolist() == [INF, 4.0, 2.0, 5.0]
    assert mixed.n_trials.tolist() == [8, 12, 14, 16]
    assert mixed.offsets.tolist() == [0, 0, 3, 3, 4, 4]
    assert mixed.owners.tolist() == [1, 1, 1, 3]


def test_sums_ignore_empty_tasks(mixed: Curves) -> None:
    """An empty task sums to 0 and does not affect its neighbour."""
    assert mixed.add_up(np.array([1.0, 2.0, 4.0, 8.0])).tolist() == [0.0, 7.0, 0.0, 8.0, 0.0]


def test_only_a_point_after_a_success_follows(mixed: Curves) -> None:
    """Neither a first success nor another task's last point counts as before."""
    assert mixed.follows.tolist() == [False, False, True, False]


def test_ages_count_the_rounds_since(mixed: Curves) -> None:
    """The last point of each task has age 0."""
    assert mixed.rounds_ago().tolist() == [2, 1, 0, 0]


def test_last_points_are_missing_where_there_are_none(mixed: Curves) -> None:
    """Empty tasks get the given default."""
    assert mixed.last(mixed.best_secs, INF).tolist() == [INF, 2.0, INF, 5.0, INF]


def test_tasks_without_a_single_point() -> None:
    """Curves exist before the first round of a job."""
    nothing = Curves.of([[], []], [[], []])

    assert nothing.n_tasks == 2
    assert nothing.add_up(np.zeros(0)).tolist() == [0.0, 0.0]
    assert nothing.last(nothing.best_secs, INF).tolist() == [INF, INF]
    assert nothing.follows.size == nothing.owners.size == nothing.rounds_ago().size == 0


@pytest.mark.parametrize(
    ("best_secs", "n_trials", "offsets", "message"),
    [
        ([1.0], [1], [0], "offsets must lead from 0 to 1"),
        ([1.0], [1], [0, 2], r"offsets must lead from 0 to 1, got \[0 2\]"),
        ([1.0], [1], [1, 1], "offsets must lead from 0 to 1"),
        ([1.0, 1.0], [1, 2], [0, 2, 1, 2], "offsets must not fall"),
        ([float("nan")], [1], [0, 1], "best_secs must be non-negative numbers, got nan"),
        ([-1.0], [1], [0, 1], "best_secs must be non-negative numbers, got -1.0"),
        ([1.0], [-1], [0, 1], "n_trials must be non-negative numbers, got -1"),
        ([1.0], [0.5], [0, 1], "n_trials must hold integers"),
        ([1.0, 1.0], [1], [0, 2], r"best_secs \(2,\), n_trials \(1,\)"),
        ([], [1], [0, 0], r"best_secs \(0,\), n_trials \(1,\)"),
    ],
)
def test_invalid_curves_are_refused(
    best_secs: Any, n_trials: Any, offsets: Any, message: str
) -> None:
    """Offsets must match the points, and numbers must be valid."""
    with pytest.raises(SchedulerError, match=message):
        Curves(best_secs, n_trials, offsets)


def test_a_task_has_as_many_rounds_as_latencies() -> None:
    """Lists with equal totals but different offsets are refused."""
    with pytest.raises(SchedulerError, match=r"\[1, 2\] latencies and \[2, 1\] rounds"):
        Curves.of([[3.0], [2.0, 1.0]], [[8, 8], [8]])


def test_no_task_at_all_is_refused() -> None:
    """Curves need at least one task."""
    with pytest.raises(SchedulerError, match="offsets must lead from 0 to 0"):
        Curves.of([], [])
