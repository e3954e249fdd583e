"""Failed tasks are retried ever more rarely and never displace the others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scheduler.retry import backoff, choose_retry
from scheduler.state import TaskTable

INF = float("inf")
MakeTable = Callable[..., TaskTable]


def test_backoff_doubles_without_overflow() -> None:
    """1, 2, 4, 8 picks, and a finite wait after any number of failures."""
    assert backoff(np.array([0, 1, 2, 3, 4])).tolist() == [1, 1, 2, 4, 8]
    assert backoff(np.array([10**6]))[0] == 2**40


@pytest.mark.parametrize(
    ("n_failed_rounds", "rounds_since_pick", "expected"),
    [
        (1, 0, None),
        (1, 1, 0),
        (2, 1, None),
        (2, 2, 0),
        (4, 7, None),
        (4, 8, 0),
    ],
)
def test_a_failed_task_waits_its_back_off(
    make_table: MakeTable, n_failed_rounds: int, rounds_since_pick: int, expected: int | None
) -> None:
    """It is due after enough picks of other tasks."""
    table = make_table(
        2,
        best_secs=[INF, 1.0],
        n_failed_rounds=[n_failed_rounds, 0],
        rounds_since_pick=[rounds_since_pick, 0],
    )

    assert choose_retry(table) == expected


def test_a_retry_does_not_follow_a_failed_round(make_table: MakeTable) -> None:
    """Regardless of the number of failures, tasks with a gradient get every second pick."""
    table = make_table(
        3, best_secs=[INF, INF, 1.0], n_failed_rounds=[1, 1, 0], rounds_since_pick=[5, 0, 6]
    )

    assert choose_retry(table) is None


def test_the_nearest_to_due_goes_when_nothing_else_can(make_table: MakeTable) -> None:
    """With no gradient anywhere a job continues instead of stopping."""
    table = make_table(
        3, best_secs=[INF] * 3, n_failed_rounds=[4, 3, 3], rounds_since_pick=[0, 2, 1]
    )

    assert choose_retry(table) == 1


def test_dead_failures_stay_dead(make_table: MakeTable) -> None:
    """An exhausted task is not retried."""
    table = make_table(2, best_secs=[INF, 1.0], alive=[False, True])

    assert choose_retry(table) is None


def test_a_retry_in_flight_is_not_sent_again(make_table: MakeTable) -> None:
    """Other failed tasks go instead; without one there is no pick."""
    columns: dict[str, Any] = {
        "best_secs": [INF, INF],
        "n_failed_rounds": [1, 3],
        "rounds_since_pick": [9, 0],
    }

    assert choose_retry(make_table(2, **columns)) == 0
    assert choose_retry(make_table(2, **columns, n_in_flight=[1, 0])) == 1
    assert choose_retry(make_table(2, **columns, n_in_flight=[1, 1])) is None
