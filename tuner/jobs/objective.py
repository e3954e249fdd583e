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


def networks_of(prepared: Prepared) -> Networks:
    """Return the networks of a job and how often each calls the job's tasks."""
    rows = {task.task_id: index for index, task in enumerate(prepared.tasks)}
    members = prepared.members or (prepared,)
    calls = np.zeros((len(members), len(rows)), np.int64)
    for network, member in enumerate(members):
        for task in member.tasks:
            calls[network, rows[task.task_id]] = task.weight
    return Networks(tuple(member.model.name for member in members), calls)
