"""The scheduler's objective of a job, from its options and the names of its networks."""

import numpy as np

from scheduler.errors import SchedulerError
from scheduler.objectives import Networks, Objective, make_objective
from tuner.errors import RequestError
from tuner.jobs.preparation import Prepared
from tuner.jobs.spec import TuneSpec


def objective_of(spec: TuneSpec, prepared: Prepared) -> Objective:
    """Build the objective of a job over its network, or over all of them.

    Raises:
        RequestError: If an option names a network that is not in the job.
    """
    networks = networks_of(prepared)
    options = spec.for_networks(networks.names).objective_options
    try:
        return make_objective(spec.objective, networks, **options)
    except SchedulerError as error:
        raise RequestError(str(error), field="objective") from error


def with_weights(spec: TuneSpec, prepared: Prepared) -> TuneSpec:
    """Return the spec with the weights of buckets as factors of their networks.

    Raises:
        RequestError: If the objective has no factors.
    """
    weights = {member.model.name: member.weight for member in prepared.members}
    if all(weight == 1.0 for weight in weights.values()):
        return spec
    if spec.objective != "weighted_sum":
        raise RequestError(
            f"weights of sizes belong to weighted_sum, and the objective is {spec.objective}; "
            "leave the weights out",
            field="bucket",
        )
    given = spec.for_networks(list(weights)).importance
    factors = {name: weight * given.get(name, 1.0) for name, weight in weights.items()}
    return spec.model_copy(update={"importance": factors})


def networks_of(prepared: Prepared) -> Networks:
    """Return the networks of a job and how often each calls the job's tasks."""
    rows = {task.task_id: index for index, task in enumerate(prepared.tasks)}
    members = prepared.members or (prepared,)
    calls = np.zeros((len(members), len(rows)), np.int64)
    for network, member in enumerate(members):
        for task in member.tasks:
            calls[network, rows[task.task_id]] = task.weight
    return Networks(tuple(member.model.name for member in members), calls)
