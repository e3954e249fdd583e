"""Tables for the scheduler's tests."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scheduler.state import TaskTable

MakeTable = Callable[..., TaskTable]


@pytest.fixture(scope="session")
def make_table() -> MakeTable:
    """Factory of a table of measured, alive tasks; keywords replace columns."""

    def make(n_tasks: int = 3, **columns: Any) -> TaskTable:
        defaults: dict[str, Any] = {
            "weights": np.ones(n_tasks, np.int64),
            "flop": np.full(n_tasks, 1e6),
            "best_secs": np.full(n_tasks, 1e-3),
            "window_secs": np.full(n_tasks, 1e-3),
            "n_rounds": np.ones(n_tasks, np.int64),
            "n_trials": np.full(n_tasks, 16),
            "n_failed_rounds": np.zeros(n_tasks, np.int64),
            "rounds_since_pick": np.ones(n_tasks, np.int64),
            "alive": np.ones(n_tasks, np.bool_),
        }
        return TaskTable(**defaults | columns)

    return make
