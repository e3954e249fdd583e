"""Measure best records again: those of another version, or those of today."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import cast

from sqlalchemy.orm import Session

from records import invalidate, jobs, measure_records, other_targets, targets, tasks
from records.errors import NoSuchRow
from records.models import BestRecord
from records.other_targets import Replay
from tuner.build_cache.opening import open_local
from tuner.context import Context
from tuner.devices import target_cache
from tuner.devices.device import Device
from tuner.devices.locks import device_lock
from tuner.engines.base import Candidate, EvaluatorSettings, RunResult, TargetInfo
from tuner.errors import RequestError, TargetError
from tuner.executors.factory import open_describer, open_executor
from tuner.jobs import stale_records
from tuner.jobs.preparation import prepare
from tuner.jobs.stale_records import Here, StaleBest
from tuner.measure.measurer import CandidateMeasurer, TaskUnderTest
from tuner.tuning import event_loop
from tuner.tuning.context import TuningContext
from tuner.tuning.remeasure_options import Remeasured, Verified, VerifyRequest
from tuner.tuning.storage_retry import sessions_with_retry
from tuner.workers.pools import fresh_worker

# Told of records that no search proposed.
WORKER = "verify"
_BUILD_TIMEOUT_SECS = 60.0
_DESCRIBE_TIMEOUT_SECS = 300.0


Watcher = Callable[[int, int, Remeasured], None]


def verify_records(context: Context, request: VerifyRequest, watcher: Watcher) -> Verified:
    """Measure the best records of the tasks that matter most again, on this machine.

    Each result is stored as soon as it is there: as a record of this version, which becomes the
    best of its task if it is verified and faster than what that has. A record of this version
    is there already, so its samples are told and not kept; if its output is wrong now, it is
    withdrawn.

    Args:
        context: Settings and database.
        request: Which records.
        watcher: Told of each with its number and the number of all.

    Raises:
        RequestError: If the request is wrong; nothing was measured.
        WorkError: If this machine is busy, or there is no room.
    """
    started = time.monotonic()
    context = replace(context, sessions=sessions_with_retry(context))
    where, weights = _locate(context, request)
    with context.sessions() as session:
        if request.current:
            found = stale_records.current_bests(session, where, weights, request.per_task)
        else:
            found = stale_records.find(
                session, where, weights, request.per_task, foreign=request.foreign
            )
    chosen = found[: request.top]
    n_all = sum(len(each.replays) for each in chosen)
    rows: list[Remeasured] = []
    if chosen:

        def told(row: Remeasured) -> None:
            rows.append(row)
            watcher(len(rows), n_all, row)

        _verify(context, where, chosen, told, request)
    return Verified(
        where.target.spec, tuple(rows), len(found) - len(chosen), time.monotonic() - started
    )


def _locate(context: Context, request: VerifyRequest) -> tuple[Here, dict[int, int] | None]:
    """Return what is measured on, and the calls by workload that make some matter more.

    Raises:
        RequestError: If there is no such model, job or target, or it is of another machine.
    """
    engine = context.settings.engine
    with open_describer(context.settings) as describe, fresh_worker(context.settings) as worker:
        networks = [
            prepare(
                model,
                context,
                worker,
                must_run=True,
                describe=describe,
            )
            for model in request.models
        ]
        if networks:
            where = Here(engine, networks[0].target, networks[0].target_id)
            return where, _weights(context, [task for each in networks for task in each.tasks])

        def ask() -> TargetInfo:
            asked = worker.call(
                engine, "describe_target", request.target, timeout_secs=_DESCRIBE_TIMEOUT_SECS
            )
            return cast("TargetInfo", asked)

        if describe is not None:
            target = describe(request.target)
        else:
            cache = open_local(context.settings)
            target = target_cache.describe(
                cache, engine, request.target, ask, context.settings.interpreter
            )
    if target.problem:
        raise TargetError(f"this machine cannot run target {request.target}: {target.problem}")
    weights = None if request.job is None else _weights_of_job(context, request.job)
    with context.sessions.begin() as session:
        target_id = targets.ensure_target(session, target.spec, dict(target.device)).id
    return Here(engine, target, target_id), weights


def _weights_of_job(context: Context, job_id: int) -> dict[int, int]:
    with context.readers() as session:
        try:
            weighted = tasks.tasks_of_job(session, jobs.get_job(session, job_id))
        except NoSuchRow as error:
            raise RequestError(f"{error}; tuner jobs ls lists them") from error
    return _weights(context, weighted)


def _weights(context: Context, weighted: Sequence[tasks.WeightedTask]) -> dict[int, int]:
    with context.readers() as session:
        workloads = other_targets.workload_ids(session, [task.task_id for task in weighted])
    weights: Counter[int] = Counter()
    for task in weighted:
        weights[workloads[task.task_id]] += task.weight
    return dict(weights)


@dataclass(frozen=True)
class _Verifier:
    """Measures records with the measurer of this machine."""

    context: Context
    where: Here
    request: VerifyRequest
    measurer: CandidateMeasurer
    device: Device
    told: Callable[[Remeasured], None]

    async def measure(self, stale: StaleBest) -> None:
        """Measure the records of one task, and store each result before it is told."""
        with self.context.sessions.begin() as session:
            task_id = tasks.ensure_task(session, stale.workload_id, self.where.target_id).id
            ir = tasks.workload_ir(session, task_id)
        # There is no best to lose to: each is timed at length.
        subject = TaskUnderTest(task_id, stale.workload, ir)
        candidates = [
            Candidate(replay.trace, replay.module_hash or "", replay.features or b"", 0.0)
            for replay in stale.replays
        ]
        replays = {replay.trace: replay for replay in stale.replays}

        measured: list[tuple[Candidate, RunResult]] = []

        def told(candidate: Candidate, result: RunResult) -> None:
            if self.request.sanitize and result.run_secs is not None:
                measured.append((candidate, result))
            else:
                self.told(self._store(stale, replays[candidate.trace], task_id, result))

        await self.measurer.measure(subject, candidates, self.device, told)
        for candidate, result in measured:
            verdict = await self.measurer.sanitize(subject, candidate.trace, self.device)
            self.told(self._store(stale, replays[candidate.trace], task_id, verdict or result))

    def _store(
        self, stale: StaleBest, replay: Replay, task_id: int, result: RunResult
    ) -> Remeasured:
        record = None
        with self.context.sessions.begin() as session:
            if self.request.current:
                record = replay.record_id
                if result.error_kind == "wrong_result":
                    invalidate.withdraw(session, record)
            elif result.error_kind != "worker_lost":
                # What killed the worker came from outside: the record deserves another chance.
                record = _add(session, replay, task_id, result)
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


def _verify(
    context: Context,
    where: Here,
    chosen: Sequence[StaleBest],
    told: Callable[[Remeasured], None],
    request: VerifyRequest,
) -> None:
    settings = context.settings
    with device_lock(settings.data_dir), open_executor(settings) as executor:
        for started in executor.warm_up():
            # Nothing imports a compiler while the first record is timed.
            started.result()
        evaluator = _evaluator(context, [where.target_id, *(each.target_id for each in chosen)])

        async def work() -> None:
            tuning_context = TuningContext(context.sessions, executor, settings.data_dir)
            tuning_context.refresh()
            device = await tuning_context.device_for(where.target)
            measurer = CandidateMeasurer(
                tuning_context, where.target.spec, evaluator, _BUILD_TIMEOUT_SECS
            )
            verifier = _Verifier(context, where, request, measurer, device, told)
            for stale in chosen:
                await verifier.measure(stale)

        event_loop.run(work())


def _evaluator(context: Context, target_ids: Sequence[int]) -> EvaluatorSettings:
    """Time as the records of this version were timed, or else as those of the others."""
    with context.readers() as session:
        asked = other_targets.newest_setting(session, list(dict.fromkeys(target_ids)), "evaluator")
    known = {field.name for field in fields(EvaluatorSettings)}
    return EvaluatorSettings(**{k: v for k, v in (asked or {}).items() if k in known})


def _add(session: Session, replay: Replay, task_id: int, result: RunResult) -> int | None:
    """Store a record of this version; None if somebody else measured that trace meanwhile."""
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
            worker=WORKER,
        ),
    )
    return None if record is None else record.id
