"""Tuning of networks on this machine, from a request to its result."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from records import database
from tuner.context import Context
from tuner.devices.calibration.calibrator import CalibrationSettings
from tuner.devices.locks import device_lock
from tuner.devices.target_cache import DescribeTarget
from tuner.errors import OutOfTime, RequestError, TunerError
from tuner.executors.base import Executor
from tuner.executors.factory import describer_of, has_remote_devices, open_executor
from tuner.jobs.models.argument_sizes import check_arguments
from tuner.jobs.objective import with_weights
from tuner.jobs.preparation import Prepared, combine, narrow, prepare
from tuner.jobs.programs import programs_of, read_dimensions
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.tuning import event_loop
from tuner.tuning.context import TuningContext
from tuner.tuning.coordinator import Coordinator
from tuner.tuning.job.job_leases import JobLeases
from tuner.tuning.job.run_deadline import RunDeadline, deadline_of
from tuner.tuning.job.session_options import SessionOptions
from tuner.tuning.session import TuningSession
from tuner.tuning.status import StatusCallback, TuningCallbacks
from tuner.tuning.tasks.snapshot import JobSnapshot
from tuner.tuning.writing.storage_retry import run_with_reconnect, sessions_with_retry
from tuner.workers.confinement.sandbox_paths import model_access
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

_SILENT = TuningCallbacks()
# Duration of a command until its first trial, compared with that of its start, for a small network.
_FIRST_TRIAL_PART = 6.0


@dataclass(frozen=True)
class TuneResult:
    """Result of one job of a tuning run.

    Attributes:
        target: Target as it was requested.
        snapshot: The task table at the end.
        n_measured: Trials that this run measured.
        secs: Seconds from the start of the run, or of its command, to its end.
        first_trial_secs: Seconds from that start to the first trial; None without one.
        error: Error that ended the job; None if it did not fail.
        busy: Share of the time in which each device worked, by its name. The CPU of this
            machine works for builders too.
    """

    job_id: int
    network: str
    target: str
    snapshot: JobSnapshot
    n_measured: int
    secs: float
    first_trial_secs: float | None
    error: TunerError | None = None
    busy: Mapping[str, float] = field(default_factory=dict)


def run_tuning(
    context: Context,
    request: TuneRequest,
    callbacks: TuningCallbacks = _SILENT,
    *,
    separate: bool = False,
) -> list[TuneResult]:
    """Tune networks in one job, or in a job each; jobs share the devices by their priorities.

    Raises:
        RequestError: If the request is wrong; nothing was measured.
        WorkError: If nothing could be measured, or the seconds end while the networks are prepared;
            with ``separate``, the result of the job has the error instead.
    """
    groups = [(model,) for model in request.models] if separate else [request.models]
    started = time.monotonic() if request.started is None else request.started
    request.spec.require_trials()
    settings = context.settings
    start_secs = time.monotonic() - started
    expected_secs = _FIRST_TRIAL_PART * start_secs
    if request.spec.seconds is not None and expected_secs > request.spec.seconds:
        callbacks.on_note(
            f"the first trial is expected after {expected_secs:.0f} s or later on this machine; "
            f"the budget of {request.spec.seconds:g} s may end before"
        )
    deadline = deadline_of(request.spec.seconds, started, start_secs)
    deadline.check()
    # A command that is suspended by Ctrl-Z would keep its locks from the next one.
    database.end_idle_transactions(context.engine)
    context = replace(context, sessions=sessions_with_retry(context))
    job_leases = JobLeases(context.engine, context.sessions)
    with device_lock(settings.data_dir), open_executor(settings) as executor:
        executor.warm_up()
        describe = describer_of(executor) if has_remote_devices(settings) else None
        prepared = [
            narrow(
                context.sessions,
                _prepare(context, models, describe, deadline),
                request.spec.task,
            )
            for models in groups
        ]
        if len({network.network_id for network in prepared}) < len(prepared):
            raise RequestError("the same network is given twice; name each network once")
        for note in dict.fromkeys(note for network in prepared for note in network.notes):
            callbacks.on_note(note)
        jobs = [(network, _options(request, network, deadline.started)) for network in prepared]
        run = _ResumableRun(context, executor, job_leases, deadline, jobs, callbacks.on_status)
        busy_before, began = _busy_secs(executor), time.monotonic()
        try:
            run_with_reconnect(context.engine, run.resume)
        finally:
            secs = time.monotonic() - began
            busy = {
                name: min((busy_secs - busy_before.get(name, 0.0)) / secs, 1.0)
                for name, busy_secs in _busy_secs(executor).items()
            }
            callbacks.on_busy(busy)
    for tuned, network in zip(run.sessions, prepared, strict=True):
        if isinstance(failure := run.failures.get(tuned.job_id), OutOfTime):
            name = f"{network.model.name}: " if len(prepared) > 1 else ""
            callbacks.on_note(f"{name}{failure}")
            del run.failures[tuned.job_id]
    if run.failures and not separate:
        (error,) = run.failures.values()
        raise error
    return [
        replace(_result(*job, started=started), error=run.failures.get(job[0].job_id), busy=busy)
        for job in zip(run.sessions, prepared, run.n_before, run.first_records, strict=True)
    ]


@dataclass
class _ResumableRun:
    """Jobs that are tuned together, and continue where they were after an outage of the database.

    Attributes:
        context: Settings and the database.
        executor: Executor of all attempts.
        deadline: End of the seconds of the run.
        jobs: Networks and the options of their jobs.
        on_status: Receives the status of each job.
        sessions: Sessions of the latest attempt, one per job.
        failures: Errors of jobs in any attempt, by job id.
        unfinished: Jobs that were active when the latest attempt ended; None before the first.
        n_before: Trials that each job had when the first attempt began.
        first_records: Time of each job's first record, by the clock of the process.
    """

    context: Context
    executor: Executor
    leases: JobLeases
    deadline: RunDeadline
    jobs: Sequence[tuple[Prepared, SessionOptions]]
    on_status: StatusCallback
    sessions: list[TuningSession] = field(default_factory=list)
    failures: dict[int, TunerError] = field(default_factory=dict)
    unfinished: set[int] | None = None
    n_before: list[int] = field(default_factory=list)
    first_records: list[float | None] = field(default_factory=list)

    def resume(self) -> None:
        """Run the unfinished jobs to their ends."""
        settings = self.context.settings
        tuning_context = TuningContext(self.context.sessions, self.executor, settings.data_dir)
        if self.unfinished is not None:
            # The first attempt was charged for the preparation.
            self.jobs = [(job, replace(options, started=None)) for job, options in self.jobs]
            self.deadline = replace(self.deadline, secs=None)
        self.sessions = [TuningSession(tuning_context, *job, self.on_status) for job in self.jobs]
        # Jobs that ended or were stopped before an outage are not started again.
        unfinished = [
            session
            for session in self.sessions
            if self.unfinished is None or session.job_id in self.unfinished
        ]
        if not self.n_before:
            self.n_before = [sum(session.snapshot().own) for session in self.sessions]
            self.first_records = [None] * len(self.sessions)
        calibration = CalibrationSettings(settings.device_tolerance)
        coordinator = Coordinator(tuning_context, calibration=calibration)
        try:
            with self.leases.holding([session.job_id for session in unfinished]):
                event_loop.run(self._serve(coordinator, unfinished))
        finally:
            self.failures |= coordinator.failures
            self.unfinished = coordinator.unfinished
            pairs = zip(self.first_records, self.sessions, strict=True)
            self.first_records = [first or session.first_record_at for first, session in pairs]

    async def _serve(self, coordinator: Coordinator, sessions: Sequence[TuningSession]) -> None:
        """Run sessions; a single one is suspended if it still waits when its seconds are spent."""
        # Jobs that share the devices count no time in which others have them.
        end = self.deadline.end_secs if len(self.jobs) == 1 else None
        renewals = asyncio.create_task(self.leases.keep(), name="job-leases")
        try:
            async with asyncio.timeout(end) as limit:
                await coordinator.serve(sessions)
        except TimeoutError:
            if self.deadline.secs is None or not limit.expired():
                raise
            (session,) = sessions
            if session.first_record_at is None:
                self.failures[session.job_id] = OutOfTime(self.deadline.secs)
        finally:
            renewals.cancel()


def _busy_secs(executor: Executor) -> dict[str, float]:
    return {runner.name: runner.meter.busy_secs for runner in executor.runners}


def _result(
    session: TuningSession,
    prepared: Prepared,
    n_before: int,
    first_record_at: float | None,
    *,
    started: float,
) -> TuneResult:
    snapshot = session.snapshot()
    return TuneResult(
        job_id=session.job_id,
        network=prepared.model.name,
        target=prepared.target.spec,
        snapshot=snapshot,
        n_measured=sum(snapshot.own) - n_before,
        secs=time.monotonic() - started,
        first_trial_secs=first_record_at and first_record_at - started,
    )


def _prepare(
    context: Context,
    models: Sequence[ModelRequest],
    describe: DescribeTarget | None,
    deadline: RunDeadline,
) -> Prepared:
    networks = []
    for model in _programs(context, models, deadline):
        # Each network has a process of its own, so that no worker holds the weights of two.
        with deadline.limiting(_worker_for(context, model)) as worker:
            networks.append(prepare(model, context, worker, must_run=True, describe=describe))
    prepared = combine(context.sessions, networks)
    check_arguments(prepared.tasks, context.settings)
    return prepared


def _worker_for(context: Context, model: ModelRequest) -> Pool:
    return fresh_worker(context.settings, access=model_access(model.reference))


def _programs(
    context: Context, models: Sequence[ModelRequest], deadline: RunDeadline
) -> Iterator[ModelRequest]:
    """Yield the programs of all models: the model itself, or one for each of its sizes."""
    for model in models:
        if not model.buckets:
            yield model
            continue
        with deadline.limiting(_worker_for(context, model)) as worker:
            dimensions = read_dimensions(model.reference, worker)
        yield from programs_of(model, dimensions)


def _options(request: TuneRequest, prepared: Prepared, started: float) -> SessionOptions:
    spec = with_weights(request.spec, prepared).with_default_budget(len(prepared.tasks))
    return SessionOptions(spec, started=started, command=request.command)
