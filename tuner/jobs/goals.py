"""What a job minimises, from what a user asked for to the scheduler's objective."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scheduler.errors import SchedulerError
from scheduler.objectives import Networks, Objective, make_objective
from tuner.errors import RequestError
from tuner.jobs.preparation import Prepared

# A value for the only network of a job, which needs no name.
ONLY = ""


@dataclass(frozen=True)
class Goal:
    """An objective by name, with what it takes; latencies in seconds.

    Attributes:
        objective: Name of the objective.
        importance: Factor by network, for ``weighted_sum``.
        required_secs: Required latency by network, for ``requirements``.
        baseline_secs: Latency to compare with by network, for ``geometric_mean``.
        patience: Rounds a task may stall, for ``early_stop``.
    """

    objective: str = "weighted_sum"
    importance: Mapping[str, float] = field(default_factory=dict)
    required_secs: Mapping[str, float] = field(default_factory=dict)
    baseline_secs: Mapping[str, float] = field(default_factory=dict)
    patience: int | None = None

    def options(self) -> dict[str, Any]:
        """Return what was given, as the objective takes it."""
        given = {
            "importance": dict(self.importance),
            "required_secs": dict(self.required_secs),
            "baseline_secs": dict(self.baseline_secs),
            "patience": self.patience,
        }
        return {name: value for name, value in given.items() if value not in ({}, None)}


def objective_of(goal: Goal, prepared: Prepared) -> Objective:
    """Build the objective of a job over its network, or over all of them.

    Raises:
        RequestError: If an option makes no sense, or names a network that is not in the job.
    """
    try:
        networks = networks_of(prepared)
        options = {
            name: _named(value, networks) if isinstance(value, dict) else value
            for name, value in goal.options().items()
        }
        return make_objective(goal.objective, networks, **options)
    except SchedulerError as error:
        raise RequestError(str(error)) from error


def networks_of(prepared: Prepared) -> Networks:
    """Return the networks of a job and how often each calls the job's tasks."""
    rows = {task.task_id: index for index, task in enumerate(prepared.tasks)}
    members = prepared.members or (prepared,)
    calls = np.zeros((len(members), len(rows)), np.int64)
    for network, member in enumerate(members):
        for task in member.tasks:
            calls[network, rows[task.task_id]] = task.weight
    return Networks(tuple(member.model.name for member in members), calls)


def _named(values: Mapping[str, float], networks: Networks) -> dict[str, float]:
    if ONLY not in values:
        return dict(values)
    if len(networks.names) > 1 or len(values) > 1:
        raise SchedulerError(
            f"say which network: NAME=VALUE, where NAME is one of {', '.join(networks.names)}"
        )
    return {networks.names[0]: values[ONLY]}
