"""Allocators by name."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from scheduler.allocator import (
    Allocator,
    Decision,
    Estimator,
    GreedyAllocator,
    GreedySettings,
    check_pick,
)
from scheduler.errors import SchedulerError
from scheduler.gradient import GradientEstimator, TvmEstimator
from scheduler.objectives import Objective
from scheduler.state import TaskTable

ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(
    {"gradient": GradientEstimator(), "tvm": TvmEstimator()}
)
ALLOCATORS = (*ESTIMATORS, "round-robin")
DEFAULT = "gradient"


class RoundRobinAllocator:
    """Picks the task with the fewest rounds, including those in flight, regardless of gains."""

    def choose(self, table: TaskTable, *, sequence: int, n_trials: int) -> Decision | None:
        """Pick the alive task with the fewest rounds; the only term is ``n_rounds``."""
        check_pick(sequence, n_trials)
        if not table.alive.any():
            return None
        turns = np.where(table.alive, table.rounds_given, np.iinfo(np.int64).max)
        task = int(np.argmin(turns))
        return Decision(task, n_trials, "round_robin", {"n_rounds": float(turns[task])})


def default_settings(name: str) -> GreedySettings:
    """Return the default settings of an allocator; TVM's rule has neither random picks nor cost."""
    return GreedySettings(epsilon=0.0, cost_aware=False) if name == "tvm" else GreedySettings()


def make_allocator(
    name: str, objective: Objective, seed: int, settings: GreedySettings | None = None
) -> Allocator:
    """Build an allocator for the tasks of an objective.

    ``tvm`` never explores and ignores cost, regardless of the settings, because its rule has
    neither.

    Raises:
        SchedulerError: If no allocator has that name.
    """
    if name == "round-robin":
        return RoundRobinAllocator()
    if name not in ESTIMATORS:
        raise SchedulerError(f"no allocator is named {name!r}; known: {', '.join(ALLOCATORS)}")
    settings = settings or default_settings(name)
    if name == "tvm":
        settings = replace(settings, epsilon=0.0, cost_aware=False)
    return GreedyAllocator(settings, ESTIMATORS[name], objective, seed)
