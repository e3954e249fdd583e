"""Forecast of each task's latency, with uncertainty, from the curves of all tasks.

A search finds improvements ever more rarely: per trial the logarithm of the best latency
falls about as 1 / trials, so the curve is a power law whose exponent differs from task to
task. A task's exponent has a Gamma prior that all curves share; its own steps, the recent
ones most, update it in closed form.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.arrays import Floats, Ints
from scheduler.errors import SchedulerError
from scheduler.forecasts.curves import Curves

# Prior mean of the improvement per e-fold of trials; it weighs as much as one e-fold of one task.
_PRIOR_RATE = 0.3
_PRIOR_EXPOSURE = 1.0


@dataclass(frozen=True)
class ForecastSettings:
    """Weights of evidence in a forecast.

    Attributes:
        memory: Weight of a step relative to the next one, above 0 to 1; 1 forgets nothing.
        strength: Weight of the shared prior in e-folds of a task's own trials, above 0.
        lag_trials: Trials added to those of each task, so that the first few do not count as
            several e-folds, at least 0.

    Raises:
        SchedulerError: If a value lies outside its range.
    """

    memory: float = 1.0
    strength: float = 2.0
    lag_trials: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.memory <= 1.0:
            raise SchedulerError(f"memory must lie in (0, 1], got {self.memory}")
        if not 0.0 < self.strength < float("inf"):
            raise SchedulerError(f"strength must be finite and above 0, got {self.strength}")
        if not 0.0 <= self.lag_trials < float("inf"):
            raise SchedulerError(f"lag_trials must be finite and at least 0, got {self.lag_trials}")


@dataclass(frozen=True, eq=False)
class Forecast:
    """The fitted curve of every task, arrays of shape (n_tasks,).

    Attributes:
        best_secs: Present best latency, seconds; inf if nothing ran.
        n_trials: Trials spent, including the lag.
        shape: Shape of the Gamma posterior of the exponent.
        exposure: Rate of the Gamma posterior: e-folds of trials observed.
        step: Typical size of one improvement, in logarithms.
        limit_secs: Time that a task can save at most, seconds.
    """

    best_secs: Floats
    n_trials: Floats
    shape: Floats
    exposure: Floats
    step: Floats
    limit_secs: Floats

    def savings(self, n_trials: Ints | int) -> tuple[Floats, Floats]:
        """Forecast the time that further trials on each task would save per call.

        Improvements are modelled as a compound Poisson process with steps of a typical size: the
        variance is that of the exponent plus that of the number of improvements.

        Returns:
            Expected seconds and their standard deviation, shape (n_tasks,); 0 where nothing ran.
        """
        ahead = np.log1p(np.maximum(n_trials, 0) / np.maximum(self.n_trials, 1.0))
        rate = self.shape / self.exposure
        fall = rate * ahead
        variance = self.step * (rate / self.exposure * ahead**2 + fall)
        known = np.where(np.isfinite(self.best_secs), self.best_secs, 0.0)
        # The spread of exp(-x) around its mean, to first order.
        spread = known * np.exp(-fall) * np.sqrt(variance)
        return np.minimum(-known * np.expm1(-fall), self.limit_secs), spread


def forecast(
    curves: Curves,
    settings: ForecastSettings,
    groups: Ints | None = None,
    limit_secs: Floats | None = None,
) -> Forecast:
    """Fit every curve.

    Args:
        curves: Curves of all tasks.
        settings: Weights of evidence.
        groups: Group of each task, shape (n_tasks,): the prior of a task is fitted to its group,
            and that of the group to all tasks; None: one group.
        limit_secs: Time that each task can save at most, seconds, such as what it takes above its
            roof, shape (n_tasks,); None: all of it.
    """
    # Log of before / after of every step; a latency of zero cannot fall.
    best = curves.best_secs
    fell = np.zeros(len(best), np.bool_)
    fell[1:] = curves.follows[1:] & (best[1:] > 0.0) & (best[1:] < best[:-1])
    after = np.flatnonzero(fell)
    falls = np.zeros(len(best))
    falls[after] = np.log(best[after - 1] / best[after])
    logs = np.log(np.maximum(curves.n_trials + settings.lag_trials, 1.0))
    growth = np.zeros(len(logs))
    growth[1:] = logs[1:] - logs[:-1]
    exposures = np.where(curves.follows, growth, 0.0)
    weights = np.exp(np.log(settings.memory) * curves.rounds_ago())
    fallen = curves.add_up(weights * falls)
    exposed = curves.add_up(weights * exposures)
    prior = _prior_rates(curves.add_up(falls), curves.add_up(exposures), groups)
    jumps = falls[falls > 0.0]
    step = float(jumps.mean()) if jumps.size else _PRIOR_RATE
    return Forecast(
        best_secs=curves.last(curves.best_secs, np.inf),
        n_trials=curves.last(curves.n_trials.astype(np.float64), 0.0) + settings.lag_trials,
        shape=prior * settings.strength + fallen,
        exposure=settings.strength + exposed,
        step=np.full(curves.n_tasks, step),
        limit_secs=np.full(curves.n_tasks, np.inf) if limit_secs is None else limit_secs,
    )


def _prior_rates(fallen: Floats, exposed: Floats, groups: Ints | None) -> Floats:
    """Pool the rates of all tasks, then of each group with all tasks as its prior."""
    overall = (_PRIOR_RATE * _PRIOR_EXPOSURE + fallen.sum()) / (_PRIOR_EXPOSURE + exposed.sum())
    if groups is None:
        return np.full(len(fallen), overall)
    in_group = np.bincount(groups, fallen), np.bincount(groups, exposed)
    rates = (overall * _PRIOR_EXPOSURE + in_group[0]) / (_PRIOR_EXPOSURE + in_group[1])
    pooled: Floats = rates[groups]
    return pooled
