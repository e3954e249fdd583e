"""One job: which task gets the next round, when it has had enough, and what it came to.

The session holds no state that the database does not: after a kill, a new session on the same
job finishes the rounds that were open, proposing what they would have proposed, and goes on with
the pick it would have made. Where several rounds were under way on one task, what the later ones
propose anew may differ: they leave out what the others were about to measure.
"""

import math
from collections import deque
from dataclasses import asdict
from typing import NamedTuple, get_args

from sqlalchemy import select
from sqlalchemy.orm import Session

from records import jobs, picks, submissions
from records.models import Job, JobState, MeasureRecord, Pick
from records.picks import NewPick
from scheduler import allocators
from scheduler.allocator import GreedyAllocator
from scheduler.budget import Budget
from scheduler.outlook import Outlook, look_ahead, trials_until
from tuner.devices.device import Device
from tuner.engines.base import TargetInfo
from tuner.errors import DeviceLost, RequestError, WorkError, last_line
from tuner.jobs.objective import objective_of
from tuner.jobs.preparation import Prepared
from tuner.tuning import finals
from tuner.tuning.context import TuningContext
from tuner.tuning.job_timer import JobTimer
from tuner.tuning.options import SessionOptions, round_size
from tuner.tuning.round_runner import NothingLeft, RoundRunner, SearchFailed
from tuner.tuning.snapshot import JobSnapshot, read_snapshot
from tuner.tuning.status import StatusCallback, TuningStatus
from tuner.tuning.status_publisher import StatusPublisher, StatusUpdate

WAITING = "waiting for a device"

_MOST_FAILED_SEARCHES = 3
# Where many measure, what others want of a job is looked up so often.
_ORDERS_SECS = 0.5


class _Asked(NamedTuple):
    """What may change of a job while it runs."""

    trials: int | None
    secs: float | None
    stop_below_secs: float | None


class TuningSession:
    """Tunes the tasks of one prepared network.

    A coordinator calls ``start``, then ``next_pick``, ``on_round_started`` and ``run_round`` for as
    many devices as it likes until there is neither a pick nor a running round, then ``finish``;
    ``suspend`` ends a session whatever happened. Every trial is written before its round ends.
    """

    def __init__(
        self,
        context: TuningContext,
        prepared: Prepared,
        options: SessionOptions,
        on_status: StatusCallback,
    ) -> None:
        self._context = context
        self._prepared = prepared
        self._options = options
        spec = options.spec
        self._objective = objective_of(spec, prepared)
        self._greedy = options.scheduler or allocators.default_settings(spec.allocator)
        self._allocator = allocators.make_allocator(
            spec.allocator, self._objective, spec.seed, self._greedy
        )
        self._round_runner = RoundRunner(context, prepared, options)
        self._budget = options.budget
        self._stop_below_secs = spec.stop_below_secs
        self._asked = _Asked(None, None, None)
        self._outlook: Outlook | None = None
        self._trials_to_stop: int | None = None
        self._n_trials = spec.trials_per_round or round_size(options.budget, prepared)
        self._n_failed_searches = 0
        self.first_record_at: float | None = None
        self.priority = spec.priority or 0
        job = self._open_job()
        self.job_id = job.id
        self._timer = JobTimer(context, job.id, job.spent_secs)
        self._publisher = StatusPublisher(context, job.id, on_status)
        context.task_states.register_job(self.job_id, prepared.tasks)
        self._open_picks: deque[Pick] = deque()
        self._n_picks = 0

    @property
    def target(self) -> TargetInfo:
        """What is tuned for."""
        return self._prepared.target

    @property
    def target_id(self) -> int:
        """The same, as the database has it."""
        return self._prepared.target_id

    def start(self) -> None:
        """Mark the job as running; rounds may follow.

        A job of the service that somebody stopped meanwhile stays what it is: it gets no pick.
        """
        takes: tuple[JobState, ...] = get_args(JobState)
        if self._options.submission:
            takes = ("queued", "running")
        with self._context.sessions.begin() as session:
            jobs.set_state(session, self.job_id, "running", only_from=takes)
        with self._context.sessions() as session:
            # Rounds that were under way when a run before ended come first.
            self._open_picks.extend(picks.open_picks(session, self.job_id))
            self._n_picks = picks.count_picks(session, self.job_id)

    def suspend(self, state: JobState, message: str | None = None) -> None:
        """End a run in a state; a job that is done, or that others stopped, stays what it is."""
        self._context.task_states.unregister_job(self.job_id)
        self._context.record_writer.drop_errors(self.job_id)
        with self._context.sessions.begin() as session:
            self._timer.save(session)
            jobs.set_state(session, self.job_id, state, message, only_from=("running",))

    def next_pick(self) -> Pick | NewPick | None:
        """Return the open pick of a killed run or a lost device, else decide on the next.

        A pick reserves a round of its task. The caller stores a new one and calls
        :meth:`on_round_started` before it asks for the next; a pick that cannot be stored is
        released in the task state cache.

        Returns:
            None if there is nothing to do now: before a round that is under way ends, or at all,
            or because somebody stopped the job.
        """
        with self._timer.running():
            if not self._refresh_limits(
                _ORDERS_SECS if self._context.has_multiple_devices else 0.0
            ):
                return None
            pick = self._next_pick()
            if pick is not None:
                self._context.task_states.reserve(pick.task_id)
            return pick

    def on_round_started(self, pick: Pick) -> None:
        """Note that the round of a pick of this job begins."""
        self._n_picks = max(self._n_picks, pick.sequence)
        self._context.task_states.round_started(pick)

    async def run_round(self, pick: Pick, device: Device) -> None:
        """Run the round of a pick on a device.

        Raises:
            DeviceLost: If the device went away; the pick will be the next again.
            WorkError: If searches keep failing.
        """
        failure: SearchFailed | NothingLeft | None = None
        completed = False
        with self._timer.running():
            started = self._context.now()
            try:
                await self._run(pick, device)
                completed = True
            except (SearchFailed, NothingLeft) as error:
                failure, completed = error, True
            except DeviceLost:
                self._open_picks.append(pick)
                raise
            finally:
                self._context.task_states.round_finished(
                    pick, completed=completed, failed=failure is not None
                )
            if failure is None:
                self._end_round(pick, self._context.now() - started)
            elif isinstance(failure, NothingLeft):
                self._end_round(pick, failed=str(failure))
            else:
                self._give_up_round(pick, failure)

    def trials_left(self, pick: Pick) -> int:
        """Return the trials that the budget allows a round, less those of other rounds."""
        task_states = self._context.task_states
        others = task_states.trials_in_flight(self.job_id) - task_states.trials_left(pick)
        spent = self.snapshot().spent_trials(self._budget.trials) + max(others, 0)
        return self._budget.round_size(max(pick.n_trials, 1), spent)

    def on_device_acquired(self, pick: Pick, device: Device, n_candidates: int) -> None:
        """Publish that the candidates of a round are measured."""
        if self._publisher.is_due:
            self._publish(
                f"measuring {n_candidates} candidates",
                self.snapshot(),
                pick.task_id,
                is_measuring_cpu=device.runner.shares_cores,
            )

    def on_result(self) -> None:
        """Note the time of the first trial of this run."""
        if self.first_record_at is None:
            self.first_record_at = self._context.now()

    def report_waiting(self) -> bool:
        """Tell those who watch that no device measures for this job now.

        Returns:
            False if somebody stopped the job: it waits for nothing any more.
        """
        if not self._refresh_limits(_ORDERS_SECS):
            return False
        if self._publisher.phase != WAITING:
            self._publish(WAITING, self.snapshot())
        return True

    async def finish(self, device: Device) -> bool:
        """Confirm the winners on a device and mark the job as done.

        A job that somebody stopped stays stopped.

        Returns:
            False if more was asked of the job since the step that found nothing left to do.

        Raises:
            WorkError: If no candidate of any task could be measured.
        """
        decided = self._asked
        with self._timer.running():
            if not self._refresh_limits():
                return True
            if self._asked != decided:
                return False
            await self._confirm_winners(device)
            # What is read anew has to be written.
            self._context.record_writer.flush(self.job_id)
            self._context.task_states.reload([self.job_id])
        spent = self.snapshot().spent_trials(self._budget.trials)
        with self._context.sessions.begin() as session:
            job = jobs.locked(session, self.job_id)
            if job.state == "running" and _asked_of(job) != decided:
                return False
            if jobs.set_state(session, self.job_id, "done", only_from=("running",)):
                jobs.record_reached_trials(session, self.job_id, spent)
        return True

    def snapshot(self) -> JobSnapshot:
        """Return the table as the records have it."""
        if self._context.task_states.has_job(self.job_id):
            return self._context.task_states.snapshot(self.job_id)
        with self._context.sessions() as session:
            return read_snapshot(session, self._prepared.tasks, session.get(Job, self.job_id))

    def _refresh_limits(self, max_age_secs: float = 0.0) -> bool:
        """Look up what others want of the job: its state, and limits that were changed."""
        job = self._context.task_states.job_standing(self.job_id, max_age_secs)
        self.priority = job.priority
        asked, before, mine = _asked_of(job), self._asked, self._budget
        if asked != before:
            self._asked = asked
            self._budget = Budget(
                mine.trials if asked.trials == before.trials else asked.trials,
                mine.secs if asked.secs == before.secs else asked.secs,
            )
            if asked.stop_below_secs != before.stop_below_secs:
                self._stop_below_secs = asked.stop_below_secs
        return job.state == "running"

    def _open_job(self) -> Job:
        spec, budget = self._options.spec, self._options.budget
        with self._context.sessions.begin() as session:
            self._check_comparable(session)
            job = jobs.open_job(
                session,
                jobs.NewJob(
                    network_id=self._prepared.network_id,
                    target_id=self._prepared.target_id,
                    objective=spec.objective,
                    priority=spec.priority or 0,
                    seed=spec.seed,
                    budget_trials=budget.trials,
                    budget_secs=budget.secs,
                    settings={
                        "allocator": spec.allocator,
                        "goal": spec.objective_options,
                        "evaluator": asdict(spec.evaluator),
                        "search": asdict(self._options.search),
                        "scheduler": asdict(self._greedy),
                    },
                    submission=self._options.submission,
                ),
            )
            self._asked = _asked_of(job)
            self.priority = job.priority
            if self._options.submission:
                # Its row is what was asked for, which may have grown since we read it.
                self._budget = Budget(job.budget_trials, job.budget_secs)
            return job

    def _check_comparable(self, session: Session) -> None:
        """Refuse to mix latencies that were measured in ways that do not compare.

        Raises:
            RequestError: If the records of this target were timed with other settings.
        """
        wanted = asdict(self._options.spec.evaluator)
        for settings in session.scalars(
            select(Job.settings).where(Job.target_id == self._prepared.target_id)
        ):
            before = settings.get("evaluator", wanted)
            for name in ("cache_flush", "number"):
                if before.get(name) != wanted[name]:
                    raise RequestError(
                        f"must be {before.get(name)}, with which the records of this target were "
                        f"timed; to time with {wanted[name]}, use another database",
                        field=name,
                    )

    def _next_pick(self) -> Pick | NewPick | None:
        task_states = self._context.task_states
        snapshot = self.snapshot()
        spent = snapshot.spent_trials(self._budget.trials)
        pick = self._open_pick()
        if self._budget.exhausted(spent, self._timer.secs):
            if pick is not None and task_states.trials_of(pick) >= pick.n_trials:
                self._end_round(pick)
            elif pick is not None:
                self._open_picks.appendleft(pick)
            return None
        if pick is not None:
            return pick
        expected = spent + task_states.trials_in_flight(self.job_id)
        n_trials = self._budget.round_size(self._n_trials, expected)
        if not n_trials:
            return None
        self._outlook = self._look_ahead(snapshot)
        if self._gain_below_threshold():
            return None
        self._publish("choosing", snapshot)
        return self._decide(snapshot, n_trials)

    def _open_pick(self) -> Pick | None:
        """Return the first pick whose round was not completed, if there is one.

        After an upgrade, or on another device, the network may have other tasks: a round of one
        that it has no more is given up.
        """
        task_ids = {task.task_id for task in self._prepared.tasks}
        while self._open_picks:
            pick = self._open_picks.popleft()
            if pick.task_id in task_ids:
                return pick
            self._end_round(pick, failed="its task is not of this network any more")
        return None

    def _look_ahead(self, snapshot: JobSnapshot) -> Outlook | None:
        """Forecast the next minute; None before every task had its first round."""
        table = snapshot.table
        if table.unseen.any() or not table.measured.any():
            return None
        if self._stop_below_secs is None and not self._publisher.is_due:
            return self._outlook
        secs, n_trials = self._timer.secs, sum(snapshot.own)
        a_minute = round(60.0 * n_trials / secs) if secs > 0.0 else 0
        weight = self._objective.at(table).gradient(table.best_secs)
        step = max(a_minute, self._n_trials)
        least = self._stop_below_secs
        if least is not None:
            self._trials_to_stop = trials_until(table, weight, step, least)
        return look_ahead(table, weight, step)

    def _gain_below_threshold(self) -> bool:
        least = self._stop_below_secs
        return least is not None and self._outlook is not None and self._outlook.saving < least

    def _decide(self, snapshot: JobSnapshot, n_trials: int) -> NewPick | None:
        # Whoever comes later may know these trials: they are to be older than the pick.
        self._context.record_writer.flush_if_immediate(self.job_id)
        decision = self._allocator.choose(snapshot.table, sequence=self._n_picks, n_trials=n_trials)
        if decision is None:
            return None
        terms = {"reason": decision.reason, **decision.terms}
        task_id = snapshot.tasks[decision.task].task_id
        return NewPick(self.job_id, task_id, decision.n_trials, terms)

    async def _run(self, pick: Pick, device: Device) -> None:
        if self._publisher.is_due:
            self._publish("searching", self.snapshot(), pick.task_id)
        await self._round_runner.run(pick, device, self)
        self._n_failed_searches = 0

    def _end_round(
        self, pick: Pick, secs: float | None = None, *, failed: str | None = None
    ) -> None:
        """Complete a round with what it came to: both are stored, or neither."""
        snapshot = self.snapshot()
        ending = picks.RoundEnd(
            pick.id,
            self.job_id,
            secs,
            total_secs=snapshot.total_secs,
            spent_trials=snapshot.spent_trials(self._budget.trials),
            job_trials=sum(snapshot.own),
            spent_secs=self._timer.take(),
            failed=failed,
        )
        self._context.record_writer.write_grouped(picks.end_picks, ending, self.job_id)
        self._context.record_writer.flush_if_immediate(self.job_id)

    def _give_up_round(self, pick: Pick, error: WorkError) -> None:
        """End a round whose search failed; the task is tried again later.

        Raises:
            WorkError: If that happened to several rounds in a row.
        """
        self._n_failed_searches += 1
        self._end_round(pick, failed=str(error))
        if self._n_failed_searches >= _MOST_FAILED_SEARCHES:
            raise WorkError(f"{self._n_failed_searches} searches in a row failed: {error}")

    async def _confirm_winners(self, device: Device) -> None:
        snapshot = self.snapshot()
        if not math.isfinite(snapshot.total_secs):
            self._explain_failure(snapshot)

        sessions = self._context.sessions
        for row in snapshot.rows:
            final = finals.find_final(sessions, row)
            if final is None:
                continue
            self._publish(
                "confirming the winners",
                snapshot,
                row.task_id,
                is_measuring_cpu=device.runner.shares_cores,
            )
            setup, n_bytes = self._round_runner.measure_setup, self._prepared.n_bytes
            await finals.run_final(sessions, setup, final, device, n_bytes)

    def _explain_failure(self, snapshot: JobSnapshot) -> None:
        """A task that was tried and never ran is a failure; one the budget did not reach is not."""
        tried = [row for row in snapshot.rows if row.n_trials and not math.isfinite(row.latency)]
        if tried and len(tried) == sum(1 for row in snapshot.rows if row.n_trials):
            with self._context.sessions() as session:
                record = session.scalars(
                    select(MeasureRecord)
                    .where(MeasureRecord.task_id == tried[0].task_id)
                    .order_by(MeasureRecord.id.desc())
                    .limit(1)
                ).one()
            raise WorkError(
                f"no candidate of any task could be measured; the last one failed with "
                f"{record.error_kind}: {last_line(record.error_text) or 'no reason given'}"
            )

    def _publish(
        self,
        phase: str,
        snapshot: JobSnapshot,
        current: int | None = None,
        *,
        is_measuring_cpu: bool = False,
    ) -> None:
        if not self._publisher.is_due:
            return
        status = TuningStatus(
            phase,
            snapshot,
            self._budget,
            snapshot.spent_trials(self._budget.trials),
            self._timer.secs,
            current,
            is_measuring_cpu,
            self._outlook,
            self._trials_to_stop,
        )
        self._publisher.publish(
            StatusUpdate(status, self._gains(snapshot) if current is None else None)
        )

    def _gains(self, snapshot: JobSnapshot) -> dict[str, float] | None:
        """Return what a round on each task is worth, if the allocator can say."""
        if not isinstance(self._allocator, GreedyAllocator):
            return None
        values = self._allocator.gains(snapshot.table, self._n_trials)
        pairs = zip(snapshot.rows, values.tolist(), strict=True)
        return {str(row.task_id): gain for row, gain in pairs}


def _asked_of(job: Job | jobs.JobStanding) -> _Asked:
    secs = submissions.stop_below_secs(job.request)
    return _Asked(job.budget_trials, job.budget_secs, secs)
