"""Tune one network from request to result: what ``tuner tune`` does."""

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scheduler import allocators
from scheduler.errors import SchedulerError
from scheduler.objectives import OBJECTIVES, check_options, known_objectives
from tuner import cost_models
from tuner.combining import combine
from tuner.context import Context
from tuner.coordinator import Coordinator
from tuner.device_lock import device_lock
from tuner.engines.base import EvaluatorSettings
from tuner.errors import RequestError, WorkError
from tuner.goals import Goal
from tuner.measuring import scratch_of
from tuner.overview import Overview
from tuner.preparation import ModelRequest, Prepared, prepare
from tuner.progress import make_progress, stderr_console
from tuner.session import TuningSession
from tuner.tune_options import TuneOptions, make_budget
from tuner.workers import Workers, fresh_worker

_TRIALS_PER_TASK = 64
_MOST_TRIALS = 10**9


@dataclass(frozen=True)
class TuneRequest:
    """A tuning run as a user asks for it; None leaves a choice to us.

    ``more_models`` are tuned in the same job, which then minimises over all of them.
    """

    model: ModelRequest
    more_models: tuple[ModelRequest, ...] = ()
    trials: int | None = None
    seconds: float | None = None
    trials_per_round: int | None = None
    allocator: str = allocators.DEFAULT
    goal: Goal = field(default_factory=Goal)
    priority: int = 0
    least_gain_secs: float | None = None
    cost_model: str = cost_models.DEFAULT_KIND
    evaluator: Mapping[str, Any] = field(default_factory=dict)
    build_timeout_secs: float = 60.0
    seed: int = 0


@dataclass(frozen=True)
class TuneResult:
    """What a tuning run came to; ``first_trial_secs`` is None if it measured nothing.

    ``error`` says why the job failed, if it did.
    """

    job_id: int
    network: str
    target: str
    overview: Overview
    n_measured: int
    secs: float
    first_trial_secs: float | None
    error: WorkError | None = None


def run_tuning(context: Context, request: TuneRequest) -> TuneResult:
    """Tune a network, or several in one job.

    Raises:
        RequestError: If the request is wrong; nothing was measured.
        WorkError: If nothing could be measured.
    """
    (result,) = _run(context, request, [(request.model, *request.more_models)])
    if result.error is not None:
        raise result.error
    return result


def run_separately(context: Context, request: TuneRequest) -> list[TuneResult]:
    """Tune networks in a job each; the jobs share the device by their priorities.

    Raises:
        RequestError: If the request is wrong; nothing was measured.
    """
    return _run(context, request, [(model,) for model in (request.model, *request.more_models)])


def _run(
    context: Context, request: TuneRequest, groups: Sequence[tuple[ModelRequest, ...]]
) -> list[TuneResult]:
    """Tune each group of networks in a job."""
    started = time.monotonic()
    options = _options(request)
    console = stderr_console()
    settings = context.settings
    with device_lock(settings.data_dir), Workers(settings) as workers:
        shutil.rmtree(scratch_of(settings.data_dir), ignore_errors=True)
        workers.warm_up()
        prepared = [_prepare(context, models) for models in groups]
        if len({each.network_id for each in prepared}) < len(prepared):
            raise RequestError("the same network is given twice")
        for note in dict.fromkeys(note for each in prepared for note in each.notes):
            console.print(f"note: {note}", style="dim", highlight=False)
        with make_progress(console) as progress:
            sessions = [
                TuningSession(
                    context.sessions,
                    workers,
                    each,
                    _with_budget(options, request, each),
                    settings.data_dir,
                    progress,
                )
                for each in prepared
            ]
            before = [sum(session.overview().own) for session in sessions]
            coordinator = Coordinator(context.sessions)
            coordinator.run(sessions)
    return [
        replace(_result(*row, started=started), error=coordinator.failures.get(row[0].job_id))
        for row in zip(sessions, prepared, before, strict=True)
    ]


def _result(
    session: TuningSession, prepared: Prepared, n_before: int, *, started: float
) -> TuneResult:
    overview = session.overview()
    return TuneResult(
        job_id=session.job_id,
        network=prepared.model.name,
        target=prepared.target.spec,
        overview=overview,
        n_measured=sum(overview.own) - n_before,
        secs=time.monotonic() - started,
        first_trial_secs=session.first_record_at and session.first_record_at - started,
    )


def _prepare(context: Context, models: Sequence[ModelRequest]) -> Prepared:
    members = []
    for model in models:
        # One process a network, so that no worker holds the weights of two.
        with fresh_worker(context.settings) as worker:
            members.append(
                prepare(model, context.settings, context.sessions, worker, must_run=True)
            )
    return combine(context.sessions, members)


def _options(request: TuneRequest) -> TuneOptions:
    """Check a request before anything is started."""
    if request.trials is not None and request.trials > _MOST_TRIALS:
        raise RequestError(f"--trials must be at most {_MOST_TRIALS}, got {request.trials}")
    budget = make_budget(
        1 if request.trials is None and request.seconds is None else request.trials,
        request.seconds,
    )
    if request.trials_per_round is not None and request.trials_per_round < 1:
        raise RequestError(f"--trials-per-round must be at least 1, got {request.trials_per_round}")
    if request.goal.objective not in OBJECTIVES:
        raise RequestError(
            f"unknown objective {request.goal.objective!r}; "
            f"known are {', '.join(known_objectives())}"
        )
    if request.allocator not in allocators.ALLOCATORS:
        raise RequestError(
            f"unknown allocator {request.allocator!r}; known are {', '.join(allocators.ALLOCATORS)}"
        )
    try:
        check_options(request.goal.objective, request.goal.options())
    except SchedulerError as error:
        raise RequestError(str(error)) from error
    if request.least_gain_secs is not None:
        if not 0 < request.least_gain_secs < math.inf:
            raise RequestError("--stop-below must be above 0")
        if request.goal.objective == "geometric_mean":
            raise RequestError("--stop-below is in milliseconds, and geometric_mean in speedups")
    if request.cost_model not in cost_models.KINDS:
        raise RequestError(
            f"unknown cost model {request.cost_model!r}; known are {', '.join(cost_models.KINDS)}"
        )
    if not 0 <= request.seed < 2**63:
        raise RequestError(f"--seed must lie in [0, 2**63), got {request.seed}")
    if not request.build_timeout_secs > 0:
        raise RequestError(f"--build-timeout must be positive, got {request.build_timeout_secs}")
    try:
        evaluator = EvaluatorSettings(**request.evaluator)
    except ValueError as error:
        raise RequestError(f"bad evaluator setting: {error}") from error
    return TuneOptions(
        budget=budget,
        trials_per_round=request.trials_per_round,
        allocator=request.allocator,
        goal=request.goal,
        priority=request.priority,
        least_gain_secs=request.least_gain_secs,
        seed=request.seed,
        evaluator=evaluator,
        cost_model=request.cost_model,
        build_timeout_secs=request.build_timeout_secs,
    )


def _with_budget(options: TuneOptions, request: TuneRequest, prepared: Prepared) -> TuneOptions:
    """Default to so many trials a task where the user set no limit."""
    if request.trials is not None or request.seconds is not None:
        return options
    return replace(options, budget=make_budget(_TRIALS_PER_TASK * len(prepared.tasks), None))
