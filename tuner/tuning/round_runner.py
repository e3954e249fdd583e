"""One round of a job: propose, build, run, verify, record."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from records import measure_records, tasks
from records.measure_records import NewRecord
from records.models import Pick
from records.record_insert import Stored
from tuner.devices.device import Device
from tuner.engines.base import Candidate, MeasuredTrace, RunResult
from tuner.errors import DeviceLost, WorkError
from tuner.jobs.options import TuneOptions
from tuner.jobs.preparation import Prepared
from tuner.measure.measurer import CandidateMeasurer, TaskUnderTest
from tuner.tuning.context import TuningContext
from tuner.tuning.search import SearchInputs, search

_LOG = logging.getLogger(__name__)


class SearchFailed(WorkError):  # noqa: N818  the name says what happened
    """Nothing could be proposed, which is no word on the task: it is tried again later."""


class NothingLeft(WorkError):  # noqa: N818  the name says what happened
    """Others were quicker meanwhile, which is no word on the task either."""


class _Known(NamedTuple):
    """What is known of a task when a round on it starts."""

    ir: bytes
    before: list[measure_records.PastTrial]
    recorded: set[str]


@dataclass(frozen=True)
class RoundCallbacks:
    """What a round asks of its job while it runs.

    Attributes:
        n_left: How many trials the budget still allows it.
        on_turn: Told how many candidates there are when the device is free to measure them.
    """

    n_left: Callable[[], int]
    on_turn: Callable[[int], None]


class RoundRunner:
    """Runs the rounds of one job, as many at once as it is asked to."""

    def __init__(self, context: TuningContext, prepared: Prepared, options: TuneOptions) -> None:
        self._context = context
        self._prepared = prepared
        self._options = options
        self._learner = context.cost_model_manager(
            prepared.target_id, options.cost_model, options.seed
        )
        self.measurer = CandidateMeasurer(
            context, prepared.target.spec, options.evaluator, options.build_timeout_secs
        )
        self._workloads = {task.task_id: task.workload_hash for task in prepared.tasks}
        self.first_record_at: float | None = None

    async def run(self, pick: Pick, device: Device, course: RoundCallbacks) -> None:
        """Spend the trials of a pick on a device; when it returns they are stored.

        Raises:
            SearchFailed: If nothing could be proposed.
            NothingLeft: If the budget allows none of what was proposed, or others measure it.
            DeviceLost: If the device went away; what it measured is stored.
        """
        known = self._look_up(pick)
        others = self._context.in_flight[pick.task_id]
        try:
            proposed = await self._propose(pick, known)
        except WorkError as error:
            raise SearchFailed(str(error)) from error
        # Rounds that search at the same time may find the same: who comes first has it.
        taken = {each.trace for flying in others.values() for each in flying}
        fresh = [
            each
            for each in proposed
            if each.trace not in taken
            and not (known.recorded and measure_records.trace_hash(each.trace) in known.recorded)
        ]
        # Proposed anew while others measure, they may be others than before: still no more of them.
        n_left = min(course.n_left(), pick.n_trials - len(known.recorded))
        candidates = fresh[: max(n_left, 0)]
        if proposed and not (candidates or known.recorded):
            # A round without trials would say that there is nothing to find any more.
            raise NothingLeft("others had the budget or the candidates when they were found")
        others[pick.id] = candidates
        try:
            await self.measurer.measure(
                TaskUnderTest(
                    pick.task_id,
                    self._workloads[pick.task_id],
                    known.ir,
                    self._context.task_states.best_latency(pick.task_id),
                ),
                candidates,
                device,
                lambda candidate, result: self._record(pick, candidate, result, device),
                lambda: course.on_turn(len(candidates)),
            )
        except DeviceLost:
            # Whoever takes the round over looks up what is left of it.
            self._context.record_writer.flush(pick.job_id)
            raise
        finally:
            others.pop(pick.id, None)
        await self._context.record_writer.wait_flushed(pick.job_id)
        if candidates and not self._context.task_states.trials_of(pick):
            raise NothingLeft("others had measured the candidates when they were stored")

    def _look_up(self, pick: Pick) -> _Known:
        with self._context.sessions() as session:
            return _Known(
                tasks.workload_ir(session, pick.task_id),
                measure_records.past_trials(session, pick.task_id, pick.id),
                measure_records.traces_of_pick(session, pick.id),
            )

    async def _propose(self, pick: Pick, known: _Known) -> list[Candidate]:
        newest = int(pick.terms["newest_record"])
        measured = [
            MeasuredTrace(record.trace, record.module_hash or "", record.latency)
            for record in known.before
        ]
        # What other rounds are about to measure is as good as measured.
        flying = self._context.in_flight[pick.task_id].values()
        measured += [MeasuredTrace(c.trace, c.module_hash, None) for each in flying for c in each]
        async with self._context.cpu_gate.working():
            wanted = SearchInputs(
                ir=known.ir,
                target=self._prepared.target.spec,
                measured=tuple(measured),
                cost_model=await self._learner.model(newest + 1),
                n_candidates=pick.n_trials,
                seeds=(self._options.seed, pick.sequence),
            )
            return await search(self._context.executor, self._options.search, wanted)

    def _record(self, pick: Pick, candidate: Candidate, result: RunResult, device: Device) -> None:
        if self.first_record_at is None:
            self.first_record_at = self._context.now()
        new = NewRecord(
            task_id=pick.task_id,
            pick_id=pick.id,
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
            worker=device.name,
        )
        journal = self._context.record_writer
        journal.record(new, lambda stored: self._stored(pick, new, stored), pick.job_id)
        if device.runner.shares_cores:
            # Once the next candidate is timed, nobody may use a core.
            journal.flush(pick.job_id)

    def _stored(self, pick: Pick, new: NewRecord, stored: Stored | None) -> None:
        self._context.task_states.record_stored(pick, new, stored)
        outcome: dict[str, object] = {"error": new.error_kind}
        if stored is not None and stored.latency is not None:
            outcome = {"latency_secs": stored.latency}
        record = None if stored is None else stored.record_id
        _LOG.info(
            "trial",
            extra={"job": pick.job_id, "pick": pick.sequence, "record": record, **outcome},
        )
