"""Forecast of the savings by further trials on a network."""

from dataclasses import dataclass

import numpy as np

from scheduler.arrays import Floats, Ints
from scheduler.errors import SchedulerError
from scheduler.forecasts.forecast import Forecast, ForecastSettings, forecast
from scheduler.state import TaskTable

# Maximum number of rounds to distribute trials over; more rounds change the result little.
_MAX_ROUNDS = 200
_ROUNDS_PER_STEP = 8


@dataclass(frozen=True)
class Outlook:
    """Forecast reduction of the objective by further trials.

    Attributes:
        n_trials: Trials, spent where they save most.
        saving: Expected saving in units of the objective: seconds for a network's latency.
        spread: Standard deviation of the saving.
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
    """Forecast the saving of ``n_trials`` if each round goes where it saves most.

    Tasks that are dead or never ran count as saving nothing.

    Args:
        table: The tasks, with their curves.
        objective_weight: df/dg, shape (n_tasks,).
        n_trials: Trials to distribute, at least 0.

    Raises:
        SchedulerError: If the table holds no curves, or ``n_trials`` is negative.
    """
    if n_trials < 0:
        raise SchedulerError(f"n_trials must be at least 0, got {n_trials}")
    fitted, weight = _fit(table, objective_weight, settings)
    given = np.zeros(table.n_tasks, np.int64)
    _distribute(fitted, weight, given, n_trials, min(n_trials, _MAX_ROUNDS))
    saving, spread = fitted.savings(given)
    return Outlook(n_trials, float(weight @ saving), float(np.sqrt(((weight * spread) ** 2).sum())))


def trials_until(
    table: TaskTable,
    objective_weight: Floats,
    n_trials: int,
    min_saving: float,
    settings: ForecastSettings | None = None,
) -> int | None:
    """Forecast the number of trials after which ``n_trials`` save less than ``min_saving``.

    Args:
        table: The tasks, with their curves.
        objective_weight: df/dg, shape (n_tasks,).
        n_trials: Trials of one step, at least 1.
        min_saving: Threshold in units of the objective.

    Returns:
        A multiple of ``n_trials``; None if it lies beyond 200 steps.

    Raises:
        SchedulerError: If the table holds no curves, or ``n_trials`` is below 1.
    """
    if n_trials < 1:
        raise SchedulerError(f"n_trials must be at least 1, got {n_trials}")
    fitted, weight = _fit(table, objective_weight, settings)
    given = np.zeros(table.n_tasks, np.int64)
    saved = 0.0
    for step in range(_MAX_ROUNDS):
        _distribute(fitted, weight, given, n_trials, min(n_trials, _ROUNDS_PER_STEP))
        saving = float(weight @ fitted.savings(given)[0])
        if saving - saved < min_saving:
            return step * n_trials
        saved = saving
    return None


def _fit(
    table: TaskTable, objective_weight: Floats, settings: ForecastSettings | None
) -> tuple[Forecast, Floats]:
    if table.curves is None:
        raise SchedulerError("an outlook needs a table with curves")
    fitted = forecast(
        table.curves, settings or ForecastSettings(), table.similarity_groups, table.above_roof
    )
    return fitted, np.where(table.measured, objective_weight, 0.0)


def _distribute(
    fitted: Forecast, weight: Floats, given: Ints, n_trials: int, n_rounds: int
) -> None:
    """Add trials to ``given`` in ``n_rounds`` rounds, each where it saves most."""
    for trials in np.diff(np.linspace(0, n_trials, n_rounds + 1).round().astype(np.int64)):
        now, _ = fitted.savings(given)
        then, _ = fitted.savings(given + trials)
        given[int(np.argmax(weight * (then - now)))] += trials
