"""Define what a job minimises, as functions of the tasks' latencies, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from scheduler.arrays import Floats, Ints, as_counts, check_same_shape
from scheduler.errors import SchedulerError, UnknownObjectiveError
from scheduler.estimate import total_latency


class Objective(Protocol):
    """A function f of all tasks' latencies g; lower is better.

    ``latencies`` are seconds, shape (n_tasks,), inf where nothing ran. Implementations
    are pure: the same latencies always give the same numbers.
    """

    def value(self, latencies: Floats) -> float:
        """Return f(g); inf if it needs a latency that is missing."""

    def gradient(self, latencies: Floats) -> Floats:
        """Return df/dg, shape (n_tasks,), finite wherever the latency is finite."""


ObjectiveFactory = Callable[..., Objective]
OBJECTIVES: dict[str, ObjectiveFactory] = {}


def register(name: str) -> Callable[[ObjectiveFactory], ObjectiveFactory]:
    """Register a factory ``(weights, **options) -> Objective`` under a name.

    Raises:
        SchedulerError: If the name is taken.
    """

    def add(factory: ObjectiveFactory) -> ObjectiveFactory:
        if name in OBJECTIVES:
            raise SchedulerError(f"an objective named {name!r} is already registered")
        OBJECTIVES[name] = factory
        return factory

    return add


def make_objective(name: str, weights: Ints, **options: object) -> Objective:
    """Build a registered objective for the tasks of a network.

    Raises:
        UnknownObjectiveError: If nothing is registered under ``name``.
    """
    if name not in OBJECTIVES:
        known = ", ".join(sorted(OBJECTIVES))
        raise UnknownObjectiveError(f"no objective is named {name!r}; known: {known}")
    return OBJECTIVES[name](weights, **options)


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """The network's latency: f1 of Zheng et al., OSDI'20, table 2, for one network.

    Attributes:
        weights: Occurrences in the network, shape (n_tasks,).
    """

    weights: Ints

    def value(self, latencies: Floats) -> float:
        """Return the sum of weighted latencies, seconds."""
        return total_latency(self.weights, latencies)

    def gradient(self, latencies: Floats) -> Floats:
        """Return the weights: each second off a task saves its weight in seconds."""
        check_same_shape(weights=self.weights, latencies=latencies)
        return self.weights.astype(np.float64)


@register("weighted_sum")
def weighted_sum(weights: Ints) -> Objective:
    """Build f1, the network's latency, from weights of shape (n_tasks,)."""
    return WeightedSum(as_counts("weights", weights))
