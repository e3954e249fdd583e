"""What a user may ask for, checked before anything is started."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scheduler import allocators
from scheduler.errors import SchedulerError
from scheduler.objectives import OBJECTIVES, check_options, known_objectives
from tuner import cost_models
from tuner.engines.base import EvaluatorSettings
from tuner.errors import RequestError
from tuner.jobs.goals import Goal
from tuner.jobs.options import TuneOptions, make_budget
from tuner.jobs.preparation import ModelRequest

MOST_TRIALS = 10**9
MOST_PRIORITY = 100


@dataclass(frozen=True)
class TuneRequest:
    """A tuning run as a user asks for it; None leaves a choice to us.

    ``more_models`` are tuned in the same job, which then minimises over all of them. A new job
    without a ``priority`` has 0, one that exists keeps its own.
    """

    model: ModelRequest
    more_models: tuple[ModelRequest, ...] = ()
    trials: int | None = None
    seconds: float | None = None
    trials_per_round: int | None = None
    allocator: str = allocators.DEFAULT
    goal: Goal = field(default_factory=Goal)
    priority: int | None = None
    least_gain_secs: float | None = None
    cost_model: str = cost_models.DEFAULT_KIND
    evaluator: Mapping[str, Any] = field(default_factory=dict)
    build_timeout_secs: float = 60.0
    seed: int = 0

    @property
    def models(self) -> tuple[ModelRequest, ...]:
        """All models, the first one first."""
        return (self.model, *self.more_models)


def model_requests(
    models: Sequence[str],
    target: str,
    sets: Sequence[Mapping[str, tuple[int, ...]]],
    random_weights: int | None,
) -> list[ModelRequest]:
    """Return every model with every set of input shapes."""
    return [
        ModelRequest(
            model, target, shapes, random_weights, _name(model, shapes) if len(sets) > 1 else ""
        )
        for model in models
        for shapes in sets
    ]


def _name(model: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Name a model that is there for several shapes."""
    sizes = ",".join("x".join(map(str, shape)) for shape in shapes.values())
    return f"{Path(model).stem}@{sizes}"


def options_of(request: TuneRequest) -> TuneOptions:
    """Check a request and return it as a session takes it.

    Where no limit is given the budget is a single trial, until the number of tasks is known.

    Raises:
        RequestError: If something in it cannot be.
    """
    if request.trials is not None and request.trials > MOST_TRIALS:
        raise RequestError(f"--trials must be at most {MOST_TRIALS}, got {request.trials}")
    budget = make_budget(
        1 if request.trials is None and request.seconds is None else request.trials,
        request.seconds,
    )
    if request.trials_per_round is not None and request.trials_per_round < 1:
        raise RequestError(f"--trials-per-round must be at least 1, got {request.trials_per_round}")
    if request.priority is not None and not abs(request.priority) <= MOST_PRIORITY:
        raise RequestError(
            f"--priority must lie in [-{MOST_PRIORITY}, {MOST_PRIORITY}], got {request.priority}"
        )
    _check_goal(request)
    if request.allocator not in allocators.ALLOCATORS:
        raise RequestError(
            f"unknown allocator {request.allocator!r}; known are {', '.join(allocators.ALLOCATORS)}"
        )
    if request.cost_model not in cost_models.KINDS:
        raise RequestError(
            f"unknown cost model {request.cost_model!r}; known are {', '.join(cost_models.KINDS)}"
        )
    if not 0 <= request.seed < 2**63:
        raise RequestError(f"--seed must lie in [0, 2**63), got {request.seed}")
    if not request.build_timeout_secs > 0:
        raise RequestError(f"--build-timeout must be positive, got {request.build_timeout_secs}")
    return TuneOptions(
        budget=budget,
        trials_per_round=request.trials_per_round,
        allocator=request.allocator,
        goal=request.goal,
        priority=request.priority or 0,
        least_gain_secs=request.least_gain_secs,
        seed=request.seed,
        evaluator=_evaluator_of(request),
        cost_model=request.cost_model,
        build_timeout_secs=request.build_timeout_secs,
    )


def _check_goal(request: TuneRequest) -> None:
    objective = request.goal.objective
    if objective not in OBJECTIVES:
        raise RequestError(
            f"unknown objective {objective!r}; known are {', '.join(known_objectives())}"
        )
    try:
        check_options(objective, request.goal.options())
    except SchedulerError as error:
        raise RequestError(str(error)) from error
    if request.least_gain_secs is not None:
        if not 0 < request.least_gain_secs < math.inf:
            raise RequestError("--stop-below must be above 0")
        if objective == "geometric_mean":
            raise RequestError("--stop-below is in milliseconds, and geometric_mean in speedups")


def _evaluator_of(request: TuneRequest) -> EvaluatorSettings:
    try:
        return EvaluatorSettings(**request.evaluator)
    except ValueError as error:
        raise RequestError(f"bad evaluator setting: {error}") from error
