"""Task tables refuse invalid columns, and histories reduce to one number."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scheduler.errors import SchedulerError
from scheduler.forecasts.curves import Curves
from scheduler.state import TaskTable, window_of

INF = float("inf")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"weights": [1, -2, 1]}, "weights must be non-negative numbers, got -2 for task 1"),
        ({"weights": [1.0, 2.0, 1.0]}, "weights must hold integers, got float64"),
        ({"weights": [1, float("nan"), 1]}, "weights must hold integers"),
        ({"weights": [1, 1]}, r"one entry per task, got weights \(2,\), flop \(3,\)"),
        ({"weights": []}, r"weights must have shape \(n_tasks,\)"),
        ({"flop": [1.0, INF, 1.0]}, "flop must be finite, got inf"),
        ({"best_secs": [1.0, float("nan"), 1.0]}, "best_secs .* got nan for task 1"),
        ({"window_secs": [1.0, 1.0, -1.0]}, "window_secs .* got -1.0 for task 2"),
        ({"alive": [1, 1, 0]}, "alive must hold booleans, got int64"),
        ({"similarity_groups": [0, 1, 3]}, "similarity_groups must lie below n_tasks = 3, got 3"),
        ({"similarity_groups": [0, 1]}, r"similarity_groups \(2,\)"),
        ({"secs_per_trial": [1.0, float("nan"), 0.0]}, "secs_per_trial .* got nan for task 1"),
        ({"secs_per_trial": [1.0]}, r"secs_per_trial \(1,\)"),
        ({"n_in_flight": [0, 0, -1]}, "n_in_flight .* got -1 for task 2"),
        ({"curves": Curves.of([[1.0]], [[8]])}, "3 tasks have 1 curves"),
    ],
)
def test_an_invalid_column_is_refused(
    make_table: Callable[..., TaskTable], columns: dict[str, Any], message: str
) -> None:
    """Errors are ValueErrors with the column and the value."""
    with pytest.raises(SchedulerError, match=message) as raised:
        make_table(**columns)
    assert isinstance(raised.value, ValueError)


def test_an_alive_task_is_unseen_measured_or_failed(
    make_table: Callable[..., TaskTable],
) -> None:
    """The three masks never overlap and cover exactly the alive tasks."""
    table = make_table(
        5,
        n_rounds=[0, 0, 1, 1, 1],
        best_secs=[INF, 1.0, 1.0, INF, 1.0],
        alive=[True, True, True, True, False],
    )

    masks = np.stack([table.unseen, table.measured, table.failed])

    assert masks.tolist() == [
        [True, True, False, False, False],
        [False, False, True, False, False],
        [False, False, False, True, False],
    ]


def test_a_task_in_flight_does_not_wait_for_its_warm_up(
    make_table: Callable[..., TaskTable],
) -> None:
    """A first round counts while it is in flight."""
    table = make_table(3, n_rounds=[0, 0, 1], best_secs=[INF, INF, 1.0], n_in_flight=[1, 0, 2])

    assert table.unseen.tolist() == [False, True, False]
    assert table.in_flight.tolist() == [True, False, True]
    assert not make_table(3).in_flight.any()


@pytest.mark.parametrize(
    ("history", "n_back", "expected"),
    [
        ([9.0, 7.0, 6.0, 5.0, 4.0], 3, 7.0),  # g(n-d) itself
        ([9.0, 7.0], 3, 9.0),  # fewer rounds than d: the oldest
        ([9.0], 3, 9.0),  # one round: no change
        ([INF, INF, 6.0, 5.0], 3, 6.0),  # nothing ran at n-d: the first that did
        ([INF, INF], 3, INF),
        ([], 3, INF),
    ],
)
def test_window_of(history: list[float], n_back: int, expected: float) -> None:
    """The window has the latency n_back rounds ago, or the nearest later one."""
    assert window_of(np.array(history), n_back) == expected


def test_window_of_refuses_to_look_forward() -> None:
    """A window of no rounds has no slope."""
    with pytest.raises(SchedulerError, match="n_back must be at least 1, got 0"):
        window_of(np.array([1.0]), 0)
