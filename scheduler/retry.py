"""Retries of tasks whose rounds all failed."""

import numpy as np

from scheduler.arrays import Ints
from scheduler.state import TaskTable

_MAX_DOUBLINGS = 40


def backoff(n_failed_rounds: Ints) -> Ints:
    """Return the picks of other tasks to wait for: 1, 2, 4, 8, ... after 1, 2, 3, 4 failures."""
    doublings = np.clip(n_failed_rounds - 1, 0, _MAX_DOUBLINGS)
    return np.left_shift(np.int64(1), doublings)


def choose_retry(table: TaskTable) -> int | None:
    """Choose the failed task that is due for another round.

    The most overdue task goes first; ties go to the lowest index. While some task has a
    gradient, a retry never directly follows a failed round, so that retries use at most every
    second pick however many tasks fail. Otherwise the task nearest to being due is chosen. A
    task with a round in flight waits for its end.

    Returns:
        Its row; None if no failed task is due.
    """
    failed = table.failed
    waiting = failed & ~table.in_flight
    if not waiting.any():
        return None
    overdue = table.rounds_since_pick - backoff(table.n_failed_rounds)
    task = int(np.argmax(np.where(waiting, overdue, np.iinfo(np.int64).min)))
    if not table.measured.any():
        return task
    just_failed = bool((failed & (table.rounds_since_pick == 0)).any())
    return task if overdue[task] >= 0 and not just_failed else None


def retry_terms(table: TaskTable, task: int) -> dict[str, float]:
    """Return the terms of a retry decision."""
    return {
        "n_failed_rounds": float(table.n_failed_rounds[task]),
        "rounds_since_pick": float(table.rounds_since_pick[task]),
        "backoff": float(backoff(table.n_failed_rounds)[task]),
    }
