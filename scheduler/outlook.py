"""Say what more trials on a network would save, from the forecast of its tasks."""

from dataclasses import dataclass

import numpy as np

from scheduler.arrays import Floats
from scheduler.errors import SchedulerError
from scheduler.forecast import ForecastSettings, forecast
from scheduler.state import TaskTable

# Rounds the trials are handed out in, at most: the answer changes little beyond.
_MOST_ROUNDS = 200


@dataclass(frozen=True)
class Outlook:
    """What so many more trials are forecast to save of the objective.

    Attributes:
        n_trials: Trials, handed out where they save most.
        saving: Expected, in units of the objective: seconds for a network's latency.
        spread: Its standard deviation.
    """

    n_trials: int
    saving: float
    spread: float


def look_ahead(
    table: TaskTable,
    objective_weight: Floats,
    n_trials: int,
    settings: ForecastSettings | None = None,
) -> Outlook:
    """Forecast what ``n_trials`` more would save if each round went where it saves most.

    Tasks that are dead or never ran save nothing here: nothing is known of them.

    Args:
        table: The tasks, with their curves.
        objective_weight: df/dg, shape (n_tasks,).
        n_trials: Trials to hand out, at least 0.
        settings: Of the forecast.

    Raises:
        SchedulerError: If the table holds no curves, or ``n_trials`` is negative.
    """
    if table.curves is None:
        raise SchedulerError("an outlook needs the curves of the tasks")
    if n_trials < 0:
        raise SchedulerError(f"n_trials must be at least 0, got {n_trials}")
    fitted = forecast(table.curves, settings or ForecastSettings(), table.similarity_groups)
    weight = np.where(table.measured, objective_weight, 0.0)
    given = np.zeros(table.n_tasks, np.int64)
    n_rounds = min(n_trials, _MOST_ROUNDS)
    for trials in np.diff(np.linspace(0, n_trials, n_rounds + 1).round().astype(np.int64)):
        now, _ = fitted.savings(given)
        then, _ = fitted.savings(given + trials)
        given[int(np.argmax(weight * (then - now)))] += trials
    saving, spread = fitted.savings(given)
    return Outlook(n_trials, float(weight @ saving), float(np.sqrt(((weight * spread) ** 2).sum())))
