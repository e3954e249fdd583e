"""Tune one network from request to result: what ``tuner tune`` does."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler.budget import Budget
from tuner.cli.rendering.progress import make_progress, stderr_console
from tuner.context import Context
from tuner.devices.locks import device_lock
from tuner.devices.target_cache import DescribeTarget
from tuner.errors import RequestError, TunerError
from tuner.executors.base import Executor
from tuner.executors.factory import describe_by, is_elsewhere, open_executor
from tuner.jobs.combining import combine
from tuner.jobs.options import TuneOptions, Watcher, default_trials
from tuner.jobs.preparation import ModelRequest, Prepared, prepare
from tuner.jobs.requests import TuneRequest, options_of
from tuner.tuning.calibration.calibrator import CalibrationSettings
from tuner.tuning.context import TuningContext
from tuner.tuning.coordinator import Coordinator
from tuner.tuning.session import TuningSession
from tuner.tuning.snapshot import JobSnapshot
from tuner.tuning.storage_retry import run_with_reconnect, sessions_with_retry
from tuner.workers.pools import fresh_worker


@dataclass(frozen=True)
class TuneResult:
    """What a tuning run came to; ``first_trial_secs`` is None if it measured nothing.

    ``error`` says why the job failed, if it did. ``busy`` is the share of the tuning in which each
    device worked, by its name; the CPU of this machine works for builders too.
    """

    job_id: int
    network: str
    target: str
    overview: JobSnapshot
    n_measured: int
    secs: float
    first_trial_secs: float | None
    error: TunerError | None = None
    busy: Mapping[str, float] = field(default_factory=dict)


def run_tuning(context: Context, request: TuneRequest) -> TuneResult:
    """Tune a network, or several in one job.

    Raises:
        RequestError: If the request is wrong; nothing was measured.
        WorkError: If nothing could be measured.
    """
    (result,) = _run(context, request, [request.models])
    if result.error is not None:
        raise result.error
    return result


def run_separately(context: Context, request: TuneRequest) -> list[TuneResult]:
    """Tune networks in a job each; the jobs share the device by their priorities.

    Raises:
        RequestError: If the request is wrong; nothing was measured.
    """
    return _run(context, request, [(model,) for model in request.models])


def _run(
    context: Context, request: TuneRequest, groups: Sequence[tuple[ModelRequest, ...]]
) -> list[TuneResult]:
    """Tune each group of networks in a job."""
    started = time.monotonic()
    options = options_of(request)
    console = stderr_console()
    settings = context.settings
    context = replace(context, sessions=sessions_with_retry(context))
    with device_lock(settings.data_dir), open_executor(settings) as executor:
        executor.warm_up()
        describe = describe_by(executor) if is_elsewhere(settings) else None
        prepared = [_prepare(context, models, describe) for models in groups]
        if len({each.network_id for each in prepared}) < len(prepared):
            raise RequestError("the same network is given twice")
        for note in dict.fromkeys(note for each in prepared for note in each.notes):
            console.print(f"note: {note}", style="dim", highlight=False)
        with make_progress(console) as progress:
            wanted = [(each, _with_budget(options, request, each)) for each in prepared]
            run = _Run(context, executor, wanted, progress)
            busy_before, begun = _busy_secs(executor), time.monotonic()
            try:
                run_with_reconnect(context.engine, run.go_on)
            finally:  # who is interrupted wants to know too
                busy = _busy_shares(executor, busy_before, time.monotonic() - begun)
                console.print(f"busy: {_shown(busy)}", style="dim", highlight=False)
    return [
        replace(
            _result(*row, started=started),
            error=run.failures.get(row[0].job_id),
            busy=busy,
        )
        for row in zip(run.sessions, prepared, run.before, run.first_records, strict=True)
    ]


@dataclass
class _Run:
    """Jobs side by side, which go on where they were if the run has to begin anew.

    Attributes:
        context: Settings and the database.
        executor: Of all runs.
        wanted: What is tuned, and how.
        watcher: Told how it goes.
        sessions: The jobs in the latest run.
        failures: Of jobs, in whatever run.
        unfinished: Jobs that were under way when the latest run ended; None before the first.
        before: Trials that the jobs had when the first run began.
        first_records: When each job had its first record, by the clock of the process.
    """

    context: Context
    executor: Executor
    wanted: Sequence[tuple[Prepared, TuneOptions]]
    watcher: Watcher
    sessions: list[TuningSession] = field(default_factory=list)
    failures: dict[int, TunerError] = field(default_factory=dict)
    unfinished: set[int] | None = None
    before: list[int] = field(default_factory=list)
    first_records: list[float | None] = field(default_factory=list)

    def go_on(self) -> None:
        """Run the jobs to their ends."""
        settings = self.context.settings
        tuning_context = TuningContext(self.context.sessions, self.executor, settings.data_dir)
        self.sessions = [TuningSession(tuning_context, *each, self.watcher) for each in self.wanted]
        # Those that ended, or that others stopped, before an outage are not begun again.
        goes_on = [
            each
            for each in self.sessions
            if self.unfinished is None or each.job_id in self.unfinished
        ]
        if not self.before:
            self.before = [sum(session.overview().own) for session in self.sessions]
            self.first_records = [None] * len(self.sessions)
        calibration = CalibrationSettings(settings.device_tolerance)
        coordinator = Coordinator(tuning_context, calibration=calibration)
        try:
            coordinator.run(goes_on)
        finally:
            self.failures |= coordinator.failures
            self.unfinished = coordinator.unfinished
            pairs = zip(self.first_records, self.sessions, strict=True)
            self.first_records = [first or each.first_record_at for first, each in pairs]


def _shown(busy: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in busy.items())


def _busy_secs(executor: Executor) -> dict[str, float]:
    return {runner.name: runner.meter.busy_secs for runner in executor.runners}


def _busy_shares(executor: Executor, before: Mapping[str, float], secs: float) -> dict[str, float]:
    """Return what share of the seconds just past each device worked, by its name."""
    return {
        name: min((busy_secs - before.get(name, 0.0)) / secs, 1.0)
        for name, busy_secs in _busy_secs(executor).items()
    }


def _result(
    session: TuningSession,
    prepared: Prepared,
    n_before: int,
    first_record_at: float | None,
    *,
    started: float,
) -> TuneResult:
    overview = session.overview()
    return TuneResult(
        job_id=session.job_id,
        network=prepared.model.name,
        target=prepared.target.spec,
        overview=overview,
        n_measured=sum(overview.own) - n_before,
        secs=time.monotonic() - started,
        first_trial_secs=first_record_at and first_record_at - started,
    )


def _prepare(
    context: Context, models: Sequence[ModelRequest], describe: DescribeTarget | None
) -> Prepared:
    members = []
    for model in models:
        # One process a network, so that no worker holds the weights of two.
        with fresh_worker(context.settings) as worker:
            members.append(
                prepare(
                    model,
                    context,
                    worker,
                    must_run=True,
                    describe=describe,
                )
            )
    return combine(context.sessions, members)


def _with_budget(options: TuneOptions, request: TuneRequest, prepared: Prepared) -> TuneOptions:
    """Default to so many trials a task where the user set no limit."""
    if request.trials is not None or request.seconds is not None:
        return options
    return replace(options, budget=Budget(default_trials(prepared)))
