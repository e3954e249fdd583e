"""New measurements of best records, of other versions or of this one."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import median
from typing import cast

from sqlalchemy.orm import Session

from records import jobs, measure_records, targets, tasks
from records.errors import NoSuchRow
from records.logs import invalidate, other_targets
from records.logs.other_targets import RecordedTrace
from records.models import BestRecord
from tuner.build_cache.cache import open_local
from tuner.context import Context
from tuner.devices import target_cache
from tuner.devices.device import Device
from tuner.devices.locks import device_lock
from tuner.engines.base import Candidate, EvaluatorSettings, RunResult, TargetInfo
from tuner.errors import RequestError, TargetError, WorkError
from tuner.executors.factory import open_describer, open_executor
from tuner.jobs import stale_records
from tuner.jobs.preparation import prepare
from tuner.jobs.stale_records import EngineTarget, StaleBest
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.round_builds import CandidateBuilder
from tuner.measure.round_measurement import RoundMeasurement
from tuner.tuning import event_loop
from tuner.tuning.context import TuningContext
from tuner.tuning.rounds.remeasure_options import Remeasured, Verified, VerifyRequest
from tuner.tuning.writing.storage_retry import sessions_with_retry
from tuner.workers.base import CallTimeout
from tuner.workers.confinement.sandbox_paths import model_access
from tuner.workers.factory import fresh_worker

# Name of the worker in records that no search proposed.
WORKER = "verify"
_BUILD_TIMEOUT_SECS = 60.0
_DESCRIBE_TIMEOUT_SECS = 300.0

# Receives the number of a record, the number of all records, and its result.
OnRemeasured = Callable[[int, int, Remeasured], None]

_TIMEOUT_SECS = 900.0


def verify_records(
    context: Context, request: VerifyRequest, on_remeasured: OnRemeasured
) -> Verified:
    """Measure the best records of the tasks that matter most again, on this machine.

    Each result is stored as soon as it is known, as a record of this version, which becomes the
    best of its task if it is verified and faster. A best record of this version is only checked:
    its new samples are reported and not stored, and it is withdrawn if its output is wrong now.

    Args:
        context: Settings and database.
        on_remeasured: Called with each result after it is stored.

    Raises:
        RequestError: If the request is wrong; nothing was measured.
        WorkError: If this machine is busy, or the disk is full.
    """
    started = time.monotonic()
    context = replace(context, sessions=sessions_with_retry(context))
    here, calls = _locate(context, request)
    with context.sessions() as session:
        if request.current:
            bests = stale_records.current_bests(session, here, calls, request.per_task)
        else:
            bests = stale_records.find(
                session, here, calls, request.per_task, foreign=request.foreign
            )
    chosen = bests[: request.top]
    n_records = sum(len(best.replays) for best in chosen)
    rows: list[Remeasured] = []

    def report(row: Remeasured) -> None:
        rows.append(row)
        on_remeasured(len(rows), n_records, row)

    if chosen:
        _remeasure(context, here, chosen, request, report)
    secs = time.monotonic() - started
    return Verified(here.target.spec, tuple(rows), len(bests) - len(chosen), secs)


def _locate(context: Context, request: VerifyRequest) -> tuple[EngineTarget, dict[int, int] | None]:
    """Return the target, and the calls by workload that rank tasks; None ranks them alike.

    Raises:
        RequestError: If the model, job or target does not exist, or belongs to another machine.
    """
    engine = context.settings.engine
    with (
        open_describer(context.settings) as describe,
        fresh_worker(
            context.settings, access=model_access(*(model.reference for model in request.models))
        ) as worker,
    ):
        networks = [
            prepare(model, context, worker, must_run=True, describe=describe)
            for model in request.models
        ]
        if networks:
            here = EngineTarget(engine, networks[0].target, networks[0].target_id)
            return here, _calls(context, [task for network in networks for task in network.tasks])

        def describe_in_worker() -> TargetInfo:
            info = worker.call(
                engine, "describe_target", request.target, timeout_secs=_DESCRIBE_TIMEOUT_SECS
            )
            return cast("TargetInfo", info)

        target = None if describe is None else describe(request.target)
        if target is None:
            cache = open_local(context.settings)
            target = target_cache.describe(
                cache, engine, request.target, describe_in_worker, context.settings.interpreter
            )
    if target.problem:
        raise TargetError(f"this machine cannot run target {request.target}: {target.problem}")
    calls = None if request.job is None else _calls_of_job(context, request.job)
    with context.sessions.begin() as session:
        target_id = targets.ensure_target(session, target.spec, dict(target.device)).id
    return EngineTarget(engine, target, target_id), calls


def _calls_of_job(context: Context, job_id: int) -> dict[int, int]:
    with context.readers() as session:
        try:
            weighted = tasks.tasks_of_job(session, jobs.get_job(session, job_id))
        except NoSuchRow as error:
            raise RequestError(f"{error}; tuner jobs ls lists them") from error
    return _calls(context, weighted)


def _calls(context: Context, weighted: Sequence[tasks.WeightedTask]) -> dict[int, int]:
    with context.readers() as session:
        workloads = other_targets.workload_ids(session, [task.task_id for task in weighted])
    calls: Counter[int] = Counter()
    for task in weighted:
        calls[workloads[task.task_id]] += task.weight
    return dict(calls)


@dataclass(frozen=True)
class _TaskRemeasurement:
    """Measurement of the records of one task; stores each result before it is reported.

    Attributes:
        context: Settings and database.
        request: Options.
        target_id: Target of this machine.
        task: The task, on this machine's target. Without a best latency, each record is timed at
            length.
        stale: Records to measure.
        setup: Target and settings of measurements.
        device: Device that measures.
        report: Receives each result.
        passed: Results that wait for the sanitizer.
    """

    context: Context
    request: VerifyRequest
    target_id: int
    task: TaskUnderTest
    stale: StaleBest
    setup: MeasureSetup
    device: Device
    report: Callable[[Remeasured], None]
    passed: list[tuple[Candidate, RunResult]] = field(default_factory=list)

    async def measure(self) -> None:
        """Measure all records of the task."""
        candidates = [
            Candidate(replay.trace, replay.module_hash or "", replay.features or b"", 0.0)
            for replay in self.stale.replays
        ]
        await RoundMeasurement(self.setup, self.task, self.device, self).measure(candidates)
        for candidate, result in self.passed:
            error = await sanitize(self.setup, self.task, candidate.trace, self.device)
            self._store_and_report(candidate, error or result)

    def on_device_acquired(self) -> None:
        """Do nothing: the results themselves show progress."""

    def on_result(self, candidate: Candidate, result: RunResult) -> None:
        """Store a result, unless the sanitizer has to run it first."""
        if self.request.sanitize and result.run_secs is not None:
            self.passed.append((candidate, result))
        else:
            self._store_and_report(candidate, result)

    def _store_and_report(self, candidate: Candidate, result: RunResult) -> None:
        replays = {replay.trace: replay for replay in self.stale.replays}
        self.report(self._store(replays[candidate.trace], result))

    def _store(self, replay: RecordedTrace, result: RunResult) -> Remeasured:
        stale, task_id, record = self.stale, self.task.task_id, None
        with self.context.sessions.begin() as session:
            if self.request.current:
                record = replay.record_id
                if result.error_kind == "wrong_result":
                    invalidate.withdraw(session, record)
            elif result.error_kind != "worker_lost":
                # A worker that was killed from outside says nothing about the record.
                record = _add(session, replay, self.target_id, task_id, result)
            best = session.get(BestRecord, task_id, populate_existing=True)
        return Remeasured(
            workload=stale.workload,
            name=stale.name,
            weight=stale.weight,
            old_record=replay.record_id,
            old_latency=replay.latency,
            differs=stale.differs,
            foreign=stale.foreign,
            record=record,
            latency=None if result.run_secs is None else median(result.run_secs),
            error_kind=result.error_kind,
            error_text=result.error_text,
            best=best is not None and best.record_id == record,
        )


def _remeasure(
    context: Context,
    here: EngineTarget,
    chosen: Sequence[StaleBest],
    request: VerifyRequest,
    report: Callable[[Remeasured], None],
) -> None:
    settings = context.settings
    with device_lock(settings.data_dir), open_executor(settings) as executor:
        for call in executor.warm_up():
            # Imports of a compiler would disturb the timing of the first record.
            call.result()
        evaluator = _evaluator(context, [here.target_id, *(best.target_id for best in chosen)])

        async def remeasure_all() -> None:
            tuning_context = TuningContext(context.sessions, executor, settings.data_dir)
            device = await tuning_context.device_for(here.target)
            setup = MeasureSetup(
                tuning_context.measure_context, here.target.spec, evaluator, _BUILD_TIMEOUT_SECS
            )
            for stale in chosen:
                task = _task_of(context, stale, here.target_id)
                await _TaskRemeasurement(
                    context, request, here.target_id, task, stale, setup, device, report
                ).measure()

        event_loop.run(remeasure_all())


def _task_of(context: Context, stale: StaleBest, target_id: int) -> TaskUnderTest:
    with context.sessions.begin() as session:
        task_id = tasks.ensure_task(session, stale.workload_id, target_id).id
        return TaskUnderTest(task_id, stale.workload, tasks.workload_ir(session, task_id))


def _evaluator(context: Context, target_ids: Sequence[int]) -> EvaluatorSettings:
    """Return the settings that timed the records of this version, or else of the others."""
    with context.readers() as session:
        stored = other_targets.newest_setting(session, list(dict.fromkeys(target_ids)), "evaluator")
    names = {attribute.name for attribute in fields(EvaluatorSettings)}
    return EvaluatorSettings(
        **{name: value for name, value in (stored or {}).items() if name in names}
    )


def _add(
    session: Session, replay: RecordedTrace, target_id: int, task_id: int, result: RunResult
) -> int | None:
    """Store a record of this version and return its id; None if the trace has a record now."""
    factor = None
    if result.clock_secs is not None:
        reference = targets.clock_reference(session, target_id, result.clock_secs)
        factor = reference / result.clock_secs
    record = measure_records.add_record(
        session,
        measure_records.NewRecord(
            task_id=task_id,
            trace=replay.trace,
            trace_hash=replay.trace_hash,
            module_hash=replay.module_hash,
            features=replay.features,
            run_secs=result.run_secs,
            error_kind=result.error_kind,
            error_text=result.error_text or None,
            max_error=result.max_error,
            verified=result.run_secs is not None,
            conditions=None if result.conditions is None else dict(result.conditions),
            clock_factor=factor,
            worker=WORKER,
            origin=replay.origin,
        ),
    )
    return None if record is None else record.id


async def sanitize(
    setup: MeasureSetup, task: TaskUnderTest, trace: str, device: Device
) -> RunResult | None:
    """Run a trace under the sanitizer of a device.

    Returns:
        The error, or None if the sanitizer reports none.

    Raises:
        RequestError: If the device has no sanitizer.
        WorkError: If the sanitizer did not finish.
    """
    builder = CandidateBuilder(setup)
    (built,) = await builder.build_all(task, [trace])
    if isinstance(built, RunResult):
        return built
    try:
        async with device.exclusive(setup.context.cpu_gate, setup.target):
            verdicts = await device.runner.measure(
                "sanitize", built, setup.target, timeout_secs=_TIMEOUT_SECS
            )
    except CallTimeout as error:
        raise WorkError(f"the sanitizer took longer than {_TIMEOUT_SECS:g} s") from error
    finally:
        builder.discard([built])
    for verdict in verdicts:
        if verdict.n_errors is None:
            raise WorkError(f"{verdict.tool} did not finish: {verdict.text}")
    errors = [f"{verdict.tool}: {verdict.text}" for verdict in verdicts if not verdict.is_clean]
    return RunResult(error_kind="wrong_result", error_text="; ".join(errors)) if errors else None
