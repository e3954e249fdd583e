"""Objectives that jobs minimise: functions of the tasks' latencies, by name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from numbers import Real
from typing import Any, Protocol

import numpy as np

from scheduler.arrays import Floats, Ints, as_counts, as_floats, check_same_shape
from scheduler.errors import SchedulerError, UnknownObjectiveError
from scheduler.estimate import weighted_latencies
from scheduler.forecasts.curves import Curves
from scheduler.state import TaskTable


class Objective(Protocol):
    """A function f of all tasks' latencies g; lower is better.

    ``latencies`` are seconds, shape (n_tasks,), inf where nothing ran. Implementations
    are pure: the same latencies always give the same numbers.
    """

    def value(self, latencies: Floats) -> float:
        """Return f(g); inf if a required latency is missing."""

    def gradient(self, latencies: Floats) -> Floats:
        """Return df/dg, shape (n_tasks,), at least 0 and finite wherever the latency is finite."""

    def at(self, table: TaskTable) -> "Objective":
        """Return the objective for this table; itself unless it depends on the history."""


@dataclass(frozen=True, eq=False)
class Networks:
    """The networks of a job and their calls of each task.

    Attributes:
        names: Distinct names, shape (n_networks,).
        calls: Occurrences of each task in each network, shape (n_networks, n_tasks).

    Raises:
        SchedulerError: If ``names`` is empty or has duplicates, or a number is negative.
    """

    names: tuple[str, ...]
    calls: Ints

    def __post_init__(self) -> None:
        if not self.names:
            raise SchedulerError("an objective needs at least one network")
        if len(set(self.names)) < len(self.names):
            raise SchedulerError(f"networks must have different names, got {', '.join(self.names)}")
        calls = np.asarray(self.calls)
        if calls.ndim != 2 or len(calls) != len(self.names):
            raise SchedulerError(
                f"calls must have shape ({len(self.names)}, n_tasks), got {calls.shape}"
            )
        object.__setattr__(self, "calls", np.array([as_counts("calls", row) for row in calls]))

    @classmethod
    def single(cls, weights: Ints) -> "Networks":
        """Return a single network with the given task weights, shape (n_tasks,)."""
        return cls(("network",), np.asarray(weights)[np.newaxis])

    def totals(self, latencies: Floats) -> Floats:
        """Compute the latency of every network, seconds, shape (n_networks,); inf if unknown."""
        return np.array([weighted_latencies(row, latencies).sum() for row in self.calls])

    def by_name(self, name: str, values: Mapping[str, float], missing: float) -> Floats:
        """Convert ``{network: positive number}`` to an array, shape (n_networks,).

        Raises:
            SchedulerError: If a network does not belong to this job, or a number is not positive
                and finite.
        """
        unknown = sorted(set(values) - set(self.names))
        if unknown:
            raise SchedulerError(
                f"{name} of {unknown[0]!r}, which is not a network of this job; "
                f"its networks: {', '.join(self.names)}"
            )
        for network, value in values.items():
            if not isinstance(value, Real) or not 0.0 < value < float("inf"):
                raise SchedulerError(
                    f"{name} of {network!r} must be finite and above 0, got {value}"
                )
        return np.array([float(values.get(network, missing)) for network in self.names])


ObjectiveFactory = Callable[..., Objective]
OBJECTIVES: dict[str, ObjectiveFactory] = {}


def register(name: str) -> Callable[[ObjectiveFactory], ObjectiveFactory]:
    """Register a factory ``(networks, **options) -> Objective`` under a name.

    Raises:
        SchedulerError: If the name is already registered.
    """

    def add(factory: ObjectiveFactory) -> ObjectiveFactory:
        if name in OBJECTIVES:
            raise SchedulerError(f"an objective named {name!r} is already registered")
        OBJECTIVES[name] = factory
        return factory

    return add


def make_objective(name: str, networks: Networks, **options: Any) -> Objective:
    """Build a registered objective for the networks of a job.

    Raises:
        UnknownObjectiveError: If nothing is registered under ``name``.
        SchedulerError: If an option is unknown or invalid.
    """
    if name not in OBJECTIVES:
        known = ", ".join(sorted(OBJECTIVES))
        raise UnknownObjectiveError(f"no objective is named {name!r}; known: {known}")
    check_options(name, options)
    return OBJECTIVES[name](networks, **options)


def option_names(name: str) -> Sequence[str]:
    """List the options that a registered objective takes."""
    return list(signature(OBJECTIVES[name]).parameters)[1:]


def check_options(name: str, options: Iterable[str]) -> None:
    """Check that a registered objective accepts options of these names.

    Raises:
        SchedulerError: If it does not; the message lists the accepted options.
    """
    accepted = option_names(name)
    unknown = sorted(set(options) - set(accepted))
    if unknown:
        raise SchedulerError(
            f"objective {name!r} does not take {unknown[0]}; "
            f"it takes {', '.join(accepted) or 'no options'}"
        )


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """Weighted sum of the latencies of all networks: f1 of Zheng et al., OSDI'20, table 2.

    Attributes:
        networks: Networks of the job.
        importance: Factor of each network, shape (n_networks,).
    """

    networks: Networks
    importance: Floats

    def value(self, latencies: Floats) -> float:
        """Return the weighted sum, seconds."""
        return float(self.importance @ self.networks.totals(latencies))

    def gradient(self, latencies: Floats) -> Floats:
        """Return the weights: each second saved in a task saves its weight in seconds."""
        weights: Floats = self.importance @ self.networks.calls.astype(np.float64)
        check_same_shape(weights=weights, latencies=latencies)
        return weights

    def at(self, table: TaskTable) -> "WeightedSum":  # noqa: ARG002
        """Return itself."""
        return self


@dataclass(frozen=True, eq=False)
class Requirements:
    """Latency above the requirements: f2, sum of max(latency, requirement).

    A network that meets its requirement has a gradient of 0 and attracts no trials.

    Attributes:
        networks: Networks of the job.
        required_secs: Required latency of each network, shape (n_networks,); 0 is never met.
    """

    networks: Networks
    required_secs: Floats

    def value(self, latencies: Floats) -> float:
        """Return the sum, seconds."""
        return float(np.maximum(self.networks.totals(latencies), self.required_secs).sum())

    def gradient(self, latencies: Floats) -> Floats:
        """Return the weights in the networks that are too slow."""
        check_same_shape(weights=self.networks.calls[0], latencies=latencies)
        missed = self.networks.totals(latencies) > self.required_secs
        weights: Floats = missed.astype(np.float64) @ self.networks.calls
        return weights

    def at(self, table: TaskTable) -> "Requirements":  # noqa: ARG002
        """Return itself."""
        return self


@dataclass(frozen=True, eq=False)
class GeometricMean:
    """Negative geometric mean of the networks' speedups over a baseline: f3.

    Attributes:
        networks: Networks of the job.
        baseline_secs: Baseline latency of each network, seconds, shape (n_networks,).
    """

    networks: Networks
    baseline_secs: Floats

    def value(self, latencies: Floats) -> float:
        """Return minus the mean; inf while a latency is missing."""
        totals = self.networks.totals(latencies)
        if not np.isfinite(totals).all() or not (totals > 0.0).all():
            return float("inf")
        return -float(np.exp(np.log(self.baseline_secs / totals).mean()))

    def gradient(self, latencies: Floats) -> Floats:
        """Return mean / n * sum of weight / latency, over the latencies that are known."""
        check_same_shape(weights=self.networks.calls[0], latencies=latencies)
        totals = self.networks.totals(np.where(np.isfinite(latencies), latencies, 0.0))
        known = totals > 0.0
        if not known.any():
            return np.zeros(len(latencies))
        mean = np.exp(np.log(self.baseline_secs[known] / totals[known]).sum() / len(totals))
        slopes = np.divide(1.0, totals, out=np.zeros(len(totals)), where=known)
        gradient: Floats = mean / len(totals) * (slopes @ self.networks.calls)
        return gradient

    def at(self, table: TaskTable) -> "GeometricMean":  # noqa: ARG002
        """Return itself."""
        return self


@dataclass(frozen=True, eq=False)
class EarlyStop:
    """Latency of all networks with early stop of stalled tasks: f4, sum of w * max(g, ES).

    Attributes:
        networks: Networks of the job.
        patience: Rounds without an improvement after which a task is done, at least 1.
        floors: ES: latency below which a task does not gain, seconds, shape (n_tasks,).
    """

    networks: Networks
    patience: int
    floors: Floats

    def value(self, latencies: Floats) -> float:
        """Return the sum, seconds."""
        return float(self.networks.totals(np.maximum(latencies, self.floors)).sum())

    def gradient(self, latencies: Floats) -> Floats:
        """Return the weights of the tasks that are above their floor."""
        check_same_shape(weights=self.networks.calls[0], latencies=latencies)
        weights = self.networks.calls.sum(axis=0).astype(np.float64)
        return np.where(latencies > self.floors, weights, 0.0)

    def at(self, table: TaskTable) -> "EarlyStop":
        """Return the objective with the latencies of stalled tasks as their floors.

        Raises:
            SchedulerError: If the table holds no curves.
        """
        if table.curves is None:
            raise SchedulerError("the objective early_stop needs a table with curves")
        stalled = rounds_since_improvement(table.curves) >= self.patience
        floors = np.where(stalled & np.isfinite(table.best_secs), table.best_secs, 0.0)
        return EarlyStop(self.networks, self.patience, floors)


def rounds_since_improvement(curves: Curves) -> Ints:
    """Count the latest rounds of each task without an improvement, shape (n_tasks,)."""
    lengths = np.diff(curves.offsets)
    newest = np.zeros(curves.n_tasks, np.int64)
    index = np.arange(len(curves.best_secs)) - curves.offsets[curves.owners]
    improved = np.isfinite(curves.best_secs) & (index == 0)
    inside = np.flatnonzero(index > 0)
    improved[inside] = curves.best_secs[inside] < curves.best_secs[inside - 1]
    np.maximum.at(newest, curves.owners[improved], index[improved] + 1)
    since: Ints = lengths - newest
    return since


@register("weighted_sum")
def weighted_sum(networks: Networks, importance: Mapping[str, float] | None = None) -> Objective:
    """Build f1; ``importance`` maps networks to factors other than 1."""
    return WeightedSum(networks, networks.by_name("importance", importance or {}, 1.0))


@register("requirements")
def requirements(networks: Networks, required_secs: Mapping[str, float] | None = None) -> Objective:
    """Build f2; a network without a requirement always counts as too slow."""
    if not required_secs:
        raise SchedulerError("the objective requirements needs required_secs for some network")
    return Requirements(networks, networks.by_name("required_secs", required_secs, 0.0))


@register("geometric_mean")
def geometric_mean(
    networks: Networks, baseline_secs: Mapping[str, float] | None = None
) -> Objective:
    """Build f3; a network without a baseline is compared with one second.

    Raises:
        SchedulerError: If a network calls no task and thus has no speedup.
    """
    for network, row in zip(networks.names, networks.calls, strict=True):
        if not row.any():
            raise SchedulerError(f"{network!r} calls no task and thus has no speedup")
    return GeometricMean(networks, networks.by_name("baseline_secs", baseline_secs or {}, 1.0))


@register("early_stop")
def early_stop(networks: Networks, patience: int = 5) -> Objective:
    """Build f4, in which no task has stalled yet."""
    if not isinstance(patience, Real) or not patience >= 1:
        raise SchedulerError(f"patience must be at least 1, got {patience}")
    n_tasks = networks.calls.shape[1]
    return EarlyStop(networks, patience, as_floats("floors", np.zeros(n_tasks)))


def known_objectives() -> Sequence[str]:
    """Return the registered names."""
    return sorted(OBJECTIVES)
