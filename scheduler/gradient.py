"""Estimates of the reduction of the objective by one more round on each task."""

from dataclasses import dataclass, replace

import numpy as np

from scheduler.allocator import Reason
from scheduler.arrays import Floats, Ints
from scheduler.errors import SchedulerError
from scheduler.state import TaskTable


@dataclass(frozen=True)
class GradientSettings:
    """Parameters of Zheng et al., OSDI'20, section 6.2, with their published defaults.

    Attributes:
        alpha: Trust in the recent slope over the optimistic guess, from 0 to 1.
        beta: Slack on the throughput of similar tasks, at least 1: a task is expected to
            reach 1/beta of its group's best throughput.
        backward_window: Rounds the recent slope looks back, at least 1.

    Raises:
        SchedulerError: If a value lies outside its range.
    """

    alpha: float = 0.2
    beta: float = 2.0
    backward_window: int = 3

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha <= 1.0:
            raise SchedulerError(f"alpha must lie in [0, 1], got {self.alpha}")
        # Below 1, the fastest task of a group would be expected to become faster than itself.
        if not 1.0 <= self.beta < float("inf"):
            raise SchedulerError(f"beta must be finite and at least 1, got {self.beta}")
        if self.backward_window < 1:
            raise SchedulerError(f"backward_window must be at least 1, got {self.backward_window}")


@dataclass(frozen=True)
class GradientEstimator:
    """The complete gradient of Ansor."""

    settings: GradientSettings = GradientSettings()
    reason: Reason = "gradient"

    def estimate(self, table: TaskTable, objective_weight: Floats) -> "GradientTerms":
        """Approximate df/dt, whatever the size of the round."""
        return estimate_gradient(table, objective_weight, self.settings)


@dataclass(frozen=True)
class TvmEstimator:
    """The rule of TVM's MetaSchedule, for comparison.

    weight * (0.2 * backward + 0.8 * best / n), window 3: without similarity, with the sum as the
    only objective, and without a recent slope before the window is full. Source: apache/tvm,
    src/s_tir/meta_schedule/task_scheduler/gradient_based.cc.
    """

    reason: Reason = "tvm"

    def estimate(self, table: TaskTable, objective_weight: Floats) -> "GradientTerms":
        """Compute the rule on the weights, ignoring the objective."""
        settings = GradientSettings()
        terms = estimate_gradient(table, objective_weight, settings)
        optimistic = np.where(table.measured, optimistic_slope(table, table.best_secs), 0.0)
        backward = np.where(table.n_rounds > settings.backward_window, terms.backward, 0.0)
        slope = 0.2 * backward + 0.8 * optimistic
        gain = np.maximum(-table.weights * slope, 0.0)
        unused = np.zeros(table.n_tasks)
        return replace(
            terms,
            backward=backward,
            optimistic=optimistic,
            similarity=unused,
            roof=unused,
            gain=gain,
        )


@dataclass(frozen=True, eq=False)
class GradientTerms:
    """Parts of df/dt_i, arrays of shape (n_tasks,), 0 where a task has no gradient.

    Attributes:
        backward: Recent slope (g(n) - g(n-d)) / d, seconds per round.
        optimistic: -(g - roof)/n, the slope if the task kept its lifetime pace down to its roof.
        similarity: beta * C / max V - g, the step to the throughput of similar tasks; it applies
            only below ``optimistic``, so never where it is positive. 0 if flop is unknown;
            divided among this round, the rounds in flight, and those without progress.
        roof: Latency that the task cannot beat, seconds; 0 if unknown.
        objective_weight: df/dg, objective units per second.
        gain: |df/dt|, the expected saving of one round; 0 if it would save nothing.
    """

    backward: Floats
    optimistic: Floats
    similarity: Floats
    roof: Floats
    objective_weight: Floats
    gain: Floats

    def row(self, task: int) -> dict[str, float]:
        """Return the terms of one task by name."""
        return {name: float(array[task]) for name, array in vars(self).items()}


def estimate_gradient(
    table: TaskTable, objective_weight: Floats, settings: GradientSettings
) -> GradientTerms:
    """Approximate df/dt_i for every task at once.

    df/dt = df/dg * (alpha * (g(n) - g(n-d))/d
                     + (1 - alpha) * min(-(g - roof)/n, beta * C / max_k V_k - g))

    as in Zheng et al., "Ansor", OSDI'20, section 6.2 and appendix A, where k runs over
    the tasks similar to this one, itself included. A task that is dead, unseen, or
    without a valid latency has no gradient. In Ansor, which knows no roof, a task keeps
    its lifetime pace down to zero. No task is expected to save more than what it takes
    above its roof. Ansor also expects the whole step to the throughput of similar tasks
    after any number of rounds that did not make it; here it is divided by these rounds.

    Args:
        table: The tasks; ``window_secs`` holds g(n-d).
        objective_weight: df/dg, shape (n_tasks,).
        settings: alpha, beta and d.

    Returns:
        The estimate and its parts.
    """
    measured = table.measured
    backward = np.where(measured, backward_slope(table, settings.backward_window), 0.0)
    optimistic = np.where(measured, optimistic_slope(table, table.above_roof), 0.0)
    similarity = np.where(measured, similarity_step(table, settings.beta), 0.0)
    for n_rounds in (table.n_in_flight, table.n_stale_rounds):
        # The step can be made only once, and seldom by a task whose rounds bring nothing.
        if n_rounds is not None:
            similarity = similarity / (1 + n_rounds)
    weight = np.where(measured, objective_weight, 0.0)
    forward = np.minimum(optimistic, similarity)
    slope = settings.alpha * backward + (1.0 - settings.alpha) * forward
    gain = weight * np.clip(-slope, 0.0, np.where(measured, table.above_roof, 0.0))
    roof = np.zeros(table.n_tasks) if table.roof_secs is None else table.roof_secs
    return GradientTerms(backward, optimistic, similarity, roof, weight, gain)


def backward_slope(table: TaskTable, backward_window: int) -> Floats:
    """Compute (g(n) - g(n-d)) / d, seconds per round, shape (n_tasks,).

    With fewer rounds than the window, d is the number of rounds. The slope is 0 with one round,
    and where either latency is missing.
    """
    known = np.isfinite(table.best_secs) & np.isfinite(table.window_secs) & (table.n_rounds > 1)
    n_back = np.clip(table.n_rounds - 1, 1, backward_window)
    change = np.zeros(table.n_tasks)
    np.subtract(table.best_secs, table.window_secs, out=change, where=known)
    return change / n_back


def optimistic_slope(table: TaskTable, reachable_secs: Floats) -> Floats:
    """Compute -(g - g_min)/n, seconds per round, shape (n_tasks,); 0 where nothing ran.

    Rounds in flight count as done, so that their expected saving is not expected twice.

    Args:
        reachable_secs: Seconds that a task could save at most, g - g_min, shape (n_tasks,). Ansor
            and TVM assume all of its latency.
    """
    reachable = np.where(np.isfinite(reachable_secs), reachable_secs, 0.0)
    return 0.0 - reachable / np.maximum(table.rounds_given, 1)


def similarity_step(table: TaskTable, beta: float) -> Floats:
    """Compute beta * C / max V - g, seconds, shape (n_tasks,); 0 where V or g is unknown.

    A dead task still shows the throughput that its group can reach.
    """
    secs_per_flop = np.full(table.n_tasks, np.inf)
    known = np.isfinite(table.best_secs) & (table.flop > 0.0)
    # 1 / V rather than V, so that a latency of zero causes no division by zero.
    np.divide(table.best_secs, table.flop, out=secs_per_flop, where=known)
    fastest = _group_minimum(secs_per_flop, table.similarity_groups)
    step = np.zeros(table.n_tasks)
    step[known] = beta * table.flop[known] * fastest[known] - table.best_secs[known]
    return step


def _group_minimum(values: Floats, groups: Ints | None) -> Floats:
    if groups is None:
        return values
    minimum = np.full(len(values), np.inf)
    np.minimum.at(minimum, groups, values)
    return minimum[groups]
