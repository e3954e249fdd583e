"""Execution of one round of a job: propose, build, verify, time, record."""

import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from records import measure_records, targets, tasks
from records.measure_records import NewRecord, PastTrial, StoredRecord
from records.models import Pick
from tuner.devices.device import Device
from tuner.engines.base import Candidate, MeasuredTrace, RunResult
from tuner.errors import DeviceLost, WorkError
from tuner.jobs.preparation import Prepared
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.round_measurement import RoundMeasurement, RoundStopped
from tuner.tuning.context import TuningContext
from tuner.tuning.devices.device_peaks import ensure_peaks
from tuner.tuning.job.session_options import SessionOptions
from tuner.tuning.rounds.search import SearchInputs, search
from tuner.tuning.tasks.task_profiles import loses_weights, peak_flops
from tuner.tuning.tasks.task_state_cache import RoundIds

_LOG = logging.getLogger(__name__)


class SearchFailed(WorkError):  # noqa: N818  the name says what happened
    """Nothing could be proposed, which says nothing about the task: it is tried again later."""


class NothingLeft(WorkError):  # noqa: N818  the name says what happened
    """Other rounds were faster, which says nothing about the task either."""


class RoundCallbacks(Protocol):
    """Job of a round, which the round asks and informs while it runs."""

    def trials_left(self, pick: Pick) -> int:
        """Return the trials that the budget still allows the round of a pick."""

    def secs_left(self) -> float:
        """Return the seconds that the budget allows rounds; inf without a limit in seconds."""

    def may_continue(self) -> bool:
        """Return whether the job is still to be tuned."""

    def on_device_acquired(self, pick: Pick, device: Device, n_candidates: int) -> None:
        """React to the start of timing of a round's candidates."""

    def on_result(self) -> None:
        """React to the result of one candidate of a round."""


class RoundRunner:
    """Runner of the rounds of one job, any number of them side by side."""

    def __init__(self, context: TuningContext, prepared: Prepared, options: SessionOptions) -> None:
        self._context = context
        self._options = options
        self._seed = options.spec.seed
        self._target, self._target_id = prepared.target, prepared.target_id
        self._cost_models = context.cost_model_manager(
            prepared.target_id, options.spec.cost_model, options.spec.seed
        )
        self.measure_setup = MeasureSetup(
            context.measure_context,
            prepared.target.spec,
            replace(options.spec.evaluator, network_bytes=prepared.n_bytes),
            options.spec.build_timeout,
        )
        self._prepared = prepared
        self._is_state_known = False
        self._choose_cache_state(is_last=False)
        self._workloads = {task.task_id: task.workload_hash for task in prepared.tasks}
        self._peak_flops = {task.task_id: peak_flops(task) for task in prepared.tasks}

    async def run(self, pick: Pick, device: Device, callbacks: RoundCallbacks) -> None:
        """Spend the trials of a pick on a device; when this returns they are committed.

        Raises:
            SearchFailed: If nothing could be proposed.
            NothingLeft: If the budget allows none of the proposed candidates, or other rounds
                measure them.
            DeviceLost: If the device was lost; the results up to then are committed.
            RoundStopped: If the job was stopped; the results up to then are committed.
        """
        is_resumed = self._context.task_states.trials_of(pick) > 0
        with self._context.sessions() as session:
            ir = tasks.workload_ir(session, pick.task_id)
            past_trials = measure_records.past_trials(session, pick.task_id, pick.id)
            # Hashes of the traces that a killed run of this round recorded.
            recorded = measure_records.traces_of_pick(session, pick.id) if is_resumed else set()
        try:
            proposed = await self._propose(pick, ir, past_trials)
        except WorkError as error:
            raise SearchFailed(str(error)) from error
        candidates = self._select(pick, proposed, recorded, callbacks.trials_left(pick))
        if proposed and not (candidates or recorded):
            # A round without trials would say that the space of the task is exhausted.
            raise NothingLeft("other rounds took the budget or the candidates during the search")
        task = TaskUnderTest(
            pick.task_id,
            self._workloads[pick.task_id],
            ir,
            self._context.task_states.best_latency(pick.task_id),
            # The seed of the inputs, at least 1; a resumed round has the same.
            zlib.crc32(f"{self._seed}/{pick.sequence}".encode()) | 1,
        )
        await ensure_peaks(
            self._context, self._target, self._target_id, device, callbacks.secs_left()
        )
        self._choose_cache_state(is_last=True)
        recorder = _ResultRecorder(
            self._context,
            self._target_id,
            pick,
            RoundIds.of(pick),
            device,
            len(candidates),
            callbacks,
        )
        in_flight = self._context.in_flight[pick.task_id]
        in_flight[pick.id] = candidates
        try:
            await RoundMeasurement(
                self.measure_setup, task, device, recorder, callbacks.may_continue
            ).measure(candidates)
        except (DeviceLost, RoundStopped):
            # What continues the round looks up which of its trials are left.
            self._context.record_writer.flush(pick.job_id)
            raise
        finally:
            in_flight.pop(pick.id, None)
            if not in_flight:
                self._context.in_flight.pop(pick.task_id, None)
        await self._context.record_writer.wait_flushed(pick.job_id)
        if candidates and not self._context.task_states.trials_of(pick):
            raise NothingLeft("other rounds had measured the candidates when they were stored")

    def _choose_cache_state(self, *, is_last: bool) -> None:
        """Time weights where the network will find them, as the device's peaks tell.

        Args:
            is_last: True to stay with the choice if they are unknown: records that were timed in
                different states do not compare.
        """
        if self._is_state_known:
            return
        with self._context.sessions() as session:
            peaks = targets.peaks_of(session, self._target_id)
        self._is_state_known = is_last or peaks is not None
        is_lost = loses_weights(self._prepared.tasks, peaks, max(len(self._prepared.members), 1))
        evaluator = replace(self.measure_setup.evaluator, weights_in_memory=is_lost)
        self.measure_setup = replace(self.measure_setup, evaluator=evaluator)

    async def _propose(
        self, pick: Pick, ir: bytes, past_trials: Sequence[PastTrial]
    ) -> list[Candidate]:
        measured = [
            MeasuredTrace(trial.trace, trial.module_hash or "", trial.latency)
            for trial in past_trials
        ]
        # Candidates that other rounds are about to measure must not be proposed again.
        measured += [
            MeasuredTrace(candidate.trace, candidate.module_hash, None)
            for candidate in self._in_flight(pick)
        ]
        newest = int(pick.terms["newest_record"])
        async with self._context.cpu_gate.shared():
            inputs = SearchInputs(
                ir=ir,
                target=self.measure_setup.target,
                measured=tuple(measured),
                cost_model=await self._cost_models.model(newest + 1),
                n_candidates=pick.n_trials,
                seeds=(self._seed, pick.sequence),
                peak_flops=self._peak_flops.get(pick.task_id, 0.0),
            )
            return await search(self._context.executor, self._options.search, inputs)

    def _select(
        self, pick: Pick, proposed: Sequence[Candidate], recorded: set[str], n_left: int
    ) -> list[Candidate]:
        """Return the candidates to measure: new ones, within the budget and the pick."""
        # Rounds that search at the same time may propose the same; the first one measures it.
        in_flight = {candidate.trace for candidate in self._in_flight(pick)}
        fresh = [
            candidate
            for candidate in proposed
            if candidate.trace not in in_flight
            and not (recorded and measure_records.trace_hash(candidate.trace) in recorded)
        ]
        # A resumed search may propose different candidates while other rounds are active; still
        # cap them at the pick's trial count.
        return fresh[: max(min(n_left, pick.n_trials - len(recorded)), 0)]

    def _in_flight(self, pick: Pick) -> list[Candidate]:
        """Return the candidates that the rounds under way on the pick's task measure."""
        rounds = self._context.in_flight.get(pick.task_id, {}).values()
        return [candidate for candidates in rounds for candidate in candidates]


@dataclass(frozen=True)
class _ResultRecorder:
    """Submits the results of one round to the record writer."""

    context: TuningContext
    target_id: int
    pick: Pick
    round_ids: RoundIds
    device: Device
    n_candidates: int
    callbacks: RoundCallbacks

    def on_device_acquired(self) -> None:
        """Pass on that timing starts."""
        self.callbacks.on_device_acquired(self.pick, self.device, self.n_candidates)

    def on_result(self, candidate: Candidate, result: RunResult) -> None:
        """Submit the record of a candidate."""
        self.callbacks.on_result()
        ids = self.round_ids
        record = NewRecord(
            task_id=ids.task_id,
            pick_id=ids.pick_id,
            trace=candidate.trace,
            trace_hash=measure_records.trace_hash(candidate.trace),
            module_hash=candidate.module_hash,
            features=candidate.features,
            run_secs=result.run_secs,
            error_kind=result.error_kind,
            error_text=result.error_text or None,
            max_error=result.max_error,
            verified=result.run_secs is not None,
            conditions=None if result.conditions is None else dict(result.conditions),
            clock_factor=self.context.clock_factor(self.target_id, result.clock_secs),
            worker=self.device.name,
            origin=candidate.origin or None,
        )
        writer = self.context.record_writer
        writer.record(record, lambda stored: self._on_stored(record, stored), ids.job_id)
        if self.device.runner.shares_cores:
            # While the next candidate is timed, a commit would disturb it.
            writer.flush(ids.job_id)

    def _on_stored(self, record: NewRecord, stored: StoredRecord | None) -> None:
        self.context.task_states.record_stored(self.round_ids, record, stored)
        if not _LOG.isEnabledFor(logging.INFO):
            return
        outcome: dict[str, object] = {"error": record.error_kind}
        if stored is not None and stored.latency is not None:
            outcome = {"latency_secs": stored.latency}
        ids = {
            "job": self.round_ids.job_id,
            "pick": self.round_ids.sequence,
            "record": None if stored is None else stored.record_id,
        }
        _LOG.info("trial", extra={**ids, **outcome})
