"""One job in a run of a coordinator: its picks, its rounds, its limits and its end.

A session holds no state that the database does not. After a kill, a new session of the same job
completes the open rounds, with the candidates that they would have had, and continues with the
pick that would have been made. If several rounds ran on one task, the candidates of the later ones
may differ, because they leave out those that the others were about to measure.
"""

import asyncio
import math
from collections import deque
from functools import partial
from typing import get_args

from records import jobs, picks
from records.models import Job, JobState, Pick
from records.picks import NewPick
from records.tuning import attempts
from tuner.devices.device import Device
from tuner.engines.base import TargetInfo
from tuner.errors import DeviceLost, DiskFull, OutOfTime, WorkError
from tuner.formatting import counted
from tuner.jobs.preparation import Prepared
from tuner.measure.round_measurement import RoundStopped
from tuner.tuning.context import TuningContext
from tuner.tuning.job.attempts import JobAttempts
from tuner.tuning.job.job_limits import JobLimits, JobTimer, requested_limits
from tuner.tuning.job.job_opening import open_job
from tuner.tuning.job.pick_chooser import PickChooser
from tuner.tuning.job.session_options import SessionOptions, round_size
from tuner.tuning.rounds import finals
from tuner.tuning.rounds.final_time import FinalTime
from tuner.tuning.rounds.round_runner import NothingLeft, RoundRunner, SearchFailed
from tuner.tuning.status import StatusCallback, TuningStatus
from tuner.tuning.tasks.snapshot import JobSnapshot, read_snapshot
from tuner.tuning.writing.status_publisher import StatusPublisher, StatusUpdate
from tuner.tuning.writing.storage_retry import FATAL_DB_ERRORS

WAITING = "waiting for a device"

_MAX_FAILED_SEARCHES = 3
# Age of a job's row up to which it is not read again, where several devices ask for picks.
_LIMITS_INTERVAL_SECS = 0.5


class TuningSession:
    """Tunes the tasks of one prepared network.

    A coordinator calls ``start``, then ``next_pick``, ``on_round_started`` and ``run_round`` for as
    many devices as it likes until there is neither a pick nor a running round, then ``finish``;
    ``suspend`` ends a session whatever happened. Every trial is written before its round ends.

    Attributes:
        owner: Name of the token that the job belongs to; None without one.
        first_record_at: Time of the first trial of this run, by the context's clock.
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
        self._is_submitted = bool(options.submission)
        self._chooser = PickChooser(prepared, options)
        self._round_runner = RoundRunner(context, prepared, options)
        self._n_trials = round_size(options, prepared)
        self._n_failed_searches = 0
        self.first_record_at: float | None = None
        job = open_job(context.sessions, prepared, options, self._chooser.settings)
        self.job_id, self.owner = job.id, job.owner
        self._limits = JobLimits(options, job)
        self._timer = JobTimer(context, job.id, job.spent_secs)
        self._final_time = FinalTime(context.sessions)
        self._started = options.started
        self._publisher = StatusPublisher(context, job.id, on_status)
        context.task_states.register_job(self.job_id, prepared.tasks)
        self._open_picks: deque[Pick] = deque()
        self._attempts = JobAttempts(context, job.id, counts=self._is_submitted)
        self._n_picks = 0

    @property
    def target(self) -> TargetInfo:
        """Target of the job."""
        return self._prepared.target

    @property
    def target_id(self) -> int:
        """Id of the target in the database."""
        return self._prepared.target_id

    @property
    def priority(self) -> int:
        """Priority of the job, as it was last read."""
        return self._limits.priority

    def start(self) -> None:
        """Mark the job as running.

        A job of the service that was stopped before stays stopped, and gets no pick.
        """
        startable: tuple[JobState, ...] = get_args(JobState)
        if self._is_submitted:
            startable = ("queued", "running")
        with self._context.sessions.begin() as session:
            jobs.set_state(session, self.job_id, "running", only_from=startable)
        self._context.task_states.forget_standing(self.job_id)
        with self._context.sessions() as session:
            # The rounds that ran when an earlier run ended come first.
            self._open_picks.extend(picks.open_picks(session, self.job_id))
            self._attempts.add_open(self._open_picks)
            self._n_picks = picks.count_picks(session, self.job_id)

    def suspend(self, state: JobState, message: str | None = None) -> None:
        """End this run of the job in a state; a job that is done or was stopped keeps its own."""
        self._attempts.leave()
        self._context.task_states.unregister_job(self.job_id)
        self._context.record_writer.drop_errors(self.job_id)
        try:
            with self._context.sessions.begin() as session:
                self._timer.save(session)
                # The process lives: whatever ended the rounds that are open, it was not their end.
                attempts.clear_rounds(session, self.job_id)
                jobs.set_state(session, self.job_id, state, message, only_from=("running",))
        except FATAL_DB_ERRORS:
            self.leave_rounds()
            raise

    def leave_rounds(self) -> None:
        """Note that the process survives its open rounds, without a database to store that in."""
        if self._is_submitted:
            self._context.unsettled.add_rounds(self.job_id)

    def next_pick(self) -> Pick | NewPick | None:
        """Return the open pick of a killed run or of a lost device, or else choose a new one.

        A pick reserves a round of its task. The caller stores a new one and calls
        :meth:`on_round_started` before it asks for the next; a pick that cannot be stored is
        released in the task state cache.

        Returns:
            None if there is nothing to do before a running round ends, or at all, or because the
            job was stopped.
        """
        if self._started is not None:
            # The job pays for the time from the start of its command to the first pick.
            if self._limits.budget.secs is not None:
                self._timer.charge(self._context.now() - self._started)
            self._started = None
        with self._timer.running():
            several = self._context.has_multiple_devices
            if not self._refresh_limits(_LIMITS_INTERVAL_SECS if several else 0.0):
                return None
            pick = self._choose()
            if pick is not None:
                self._context.task_states.reserve(pick.task_id)
            return pick

    def on_round_started(self, pick: Pick) -> None:
        """Note that the round of a pick starts."""
        self._n_picks = max(self._n_picks, pick.sequence)
        self._context.task_states.round_started(pick)

    async def run_round(self, pick: Pick, device: Device) -> None:
        """Run the round of a pick on a device.

        It ends early and stays open if the job is stopped or its seconds are spent.

        Raises:
            DeviceLost: If the device was lost; :meth:`next_pick` returns the pick again.
            DiskFull: If the disk is full; in a service, :meth:`next_pick` returns the pick again.
            WorkError: If searches fail repeatedly.
        """
        failure: SearchFailed | NothingLeft | None = None
        completed = False
        with self._timer.running():
            started = self._context.now()
            try:
                async with self._attempts.round(pick):
                    self._publish_if_due("searching", pick.task_id)
                    await self._run_in_time(pick, device)
                self._n_failed_searches = 0
                completed = True
            except (SearchFailed, NothingLeft) as error:
                failure, completed = error, True
            except RoundStopped:
                self._keep_open(pick)
                return
            except (DeviceLost, DiskFull) as error:
                if isinstance(error, DiskFull) and self._context.disk is None:
                    raise
                self._keep_open(pick)
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
                # The task is tried again later.
                self._n_failed_searches += 1
                self._end_round(pick, failed=str(failure))
                if self._n_failed_searches >= _MAX_FAILED_SEARCHES:
                    raise WorkError(
                        f"{self._n_failed_searches} searches in a row failed: {failure}"
                    )

    async def _run_in_time(self, pick: Pick, device: Device) -> None:
        """Run the round of a pick until it ends or the budget in seconds does.

        Raises:
            RoundStopped: If time is up; what was measured is committed.
        """
        secs = self.secs_left()
        try:
            async with asyncio.timeout(secs if math.isfinite(secs) else None) as limit:
                await self._round_runner.run(pick, device, self)
        except TimeoutError as error:
            if not limit.expired():
                raise
            self._context.record_writer.flush(self.job_id)
            raise RoundStopped("the seconds of the job are spent") from error

    def _round_secs_left(self, snapshot: JobSnapshot) -> float:
        return self._final_time.round_secs_left(self._limits.budget, self._timer.secs, snapshot)

    def _keep_open(self, pick: Pick) -> None:
        """Let :meth:`next_pick` return a pick again, whose round did not end."""
        self._attempts.give_back(pick)
        self._open_picks.append(pick)

    def secs_left(self) -> float:
        """Return the seconds that the budget allows rounds; inf without a limit in seconds."""
        return self._round_secs_left(self.snapshot())

    def may_continue(self) -> bool:
        """Return whether the job is still to be tuned, as its row says now."""
        return self._refresh_limits(_LIMITS_INTERVAL_SECS)

    def trials_left(self, pick: Pick) -> int:
        """Return the trials that the budget allows a round, less the trials of other rounds."""
        task_states, budget = self._context.task_states, self._limits.budget
        others = task_states.trials_in_flight(self.job_id) - task_states.trials_left(pick)
        spent = self.snapshot().spent_trials(budget.trials) + max(others, 0)
        return budget.round_size(max(pick.n_trials, 1), spent)

    def on_device_acquired(self, pick: Pick, device: Device, n_candidates: int) -> None:
        """Publish that the candidates of a round are measured."""
        phase = f"measuring {counted(n_candidates, 'candidate')}"
        self._publish_if_due(phase, pick.task_id, is_measuring_cpu=device.runner.shares_cores)

    def on_result(self) -> None:
        """Note the time of the first trial of this run."""
        if self.first_record_at is None:
            self.first_record_at = self._context.now()
            self._timer.settle()

    def report_waiting(self, reason: str | None = WAITING) -> bool:
        """Publish that no device measures for this job now, or another reason to wait.

        Args:
            reason: Why it waits; None to publish nothing.

        Returns:
            False if the job was stopped, and waits no longer.
        """
        if not self._refresh_limits(_LIMITS_INTERVAL_SECS):
            return False
        if reason is not None and self._publisher.phase != reason:
            self._publish_if_due(reason)
        return True

    async def finish(self, device: Device) -> bool:
        """Confirm the winners on a device and mark the job as done, unless it was stopped.

        Returns:
            False if the limits of the job were raised since :meth:`next_pick` found nothing to do.

        Raises:
            WorkError: If no candidate of any task could be measured, or none in time.
        """
        requested = self._limits.requested
        with self._timer.running():
            if not self._refresh_limits():
                return True
            if self._limits.requested != requested:
                return False
            with self._attempts.finals():
                await self._confirm_winners(device)
            # Reloading reads what is committed.
            self._context.record_writer.flush(self.job_id)
            self._context.task_states.reload([self.job_id])
        spent = self.snapshot().spent_trials(self._limits.budget.trials)
        with self._context.sessions.begin() as session:
            job = jobs.locked(session, self.job_id)
            if job.state == "running" and requested_limits(job) != requested:
                return False
            if jobs.set_state(session, self.job_id, "done", only_from=("running",)):
                jobs.record_reached_trials(session, self.job_id, spent)
        return True

    def snapshot(self) -> JobSnapshot:
        """Return the task table of the job, as the records have it."""
        if self._context.task_states.has_job(self.job_id):
            return self._context.task_states.snapshot(self.job_id)
        with self._context.sessions() as session:
            return read_snapshot(session, self._prepared.tasks, session.get(Job, self.job_id))

    def _refresh_limits(self, max_age_secs: float = 0.0) -> bool:
        """Read the limits of the job; returns whether it is still to be tuned."""
        job = self._context.task_states.job_standing(self.job_id, max_age_secs)
        self._limits.update(job)
        return job.state == "running"

    def _choose(self) -> Pick | NewPick | None:
        task_states, budget = self._context.task_states, self._limits.budget
        snapshot = self.snapshot()
        spent = snapshot.spent_trials(budget.trials)
        pick = self._next_open_pick()
        secs = self._timer.secs
        reserved = self._final_time.reserve_secs(budget, secs, snapshot)
        if budget.exhausted(spent, secs + reserved) or self._round_secs_left(snapshot) <= 0.0:
            if pick is not None:
                self._attempts.leave(pick)
                self._open_picks.appendleft(pick)
            # Rounds that wait for their turn are complete all the same.
            for each in [*self._open_picks]:
                if task_states.trials_of(each) >= each.n_trials:
                    self._open_picks.remove(each)
                    self._end_round(each)
            return None
        if pick is not None:
            return pick
        expected = spent + task_states.trials_in_flight(self.job_id)
        n_trials = budget.round_size(self._n_trials, expected)
        if not n_trials or self._gain_below_threshold(snapshot):
            return None
        self._publish_if_due("choosing")
        # The rounds of other picks may know these trials, which have to be older than the pick.
        self._context.record_writer.flush_if_immediate(self.job_id)
        return self._chooser.choose(
            self.job_id, snapshot, sequence=self._n_picks, n_trials=n_trials
        )

    def _next_open_pick(self) -> Pick | None:
        """Return the first pick whose round was not completed and may begin, if there is one.

        After an upgrade, or on another device, the network may have other tasks; rounds of tasks
        that it has lost are given up.
        """
        task_ids = {task.task_id for task in self._prepared.tasks}
        for _ in range(len(self._open_picks)):
            pick = self._open_picks.popleft()
            if pick.task_id not in task_ids:
                self._end_round(pick, failed="its task is not of this network any more")
            elif self._attempts.may_begin(pick):
                return pick
            else:
                self._open_picks.append(pick)
        return None

    def _gain_below_threshold(self, snapshot: JobSnapshot) -> bool:
        stop_below_secs = self._limits.stop_below_secs
        if stop_below_secs is not None or self._publisher.is_due:
            self._chooser.update_outlook(
                snapshot,
                spent_secs=self._timer.secs,
                n_trials=self._n_trials,
                stop_below_secs=stop_below_secs,
            )
        outlook = self._chooser.outlook
        return (
            stop_below_secs is not None and outlook is not None and outlook.saving < stop_below_secs
        )

    def _end_round(
        self, pick: Pick, secs: float | None = None, *, failed: str | None = None
    ) -> None:
        """Store the end of a round and the totals of its job, in one transaction."""
        snapshot = self.snapshot()
        round_end = picks.RoundEnd(
            pick.id,
            self.job_id,
            secs,
            total_secs=snapshot.total_latency_secs,
            spent_trials=snapshot.spent_trials(self._limits.budget.trials),
            job_trials=sum(snapshot.own),
            spent_secs=self._timer.take(),
            failed=failed,
        )
        self._context.record_writer.write_grouped(picks.end_picks, round_end, self.job_id)
        self._context.record_writer.flush_if_immediate(self.job_id)

    async def _confirm_winners(self, device: Device) -> None:
        snapshot = self.snapshot()
        sessions = self._context.sessions
        finals.check_any_measured(sessions, snapshot.rows)
        if self._limits.budget.secs is not None and not any(row.n_trials for row in snapshot.rows):
            raise OutOfTime(self._limits.budget.secs)
        races = finals.find_races(sessions, self._round_runner.measure_setup, snapshot.rows)

        def on_heat(race: finals.Race) -> None:
            # A run that is killed in its final has spent the time before.
            self._timer.settle()
            with sessions.begin() as session:
                jobs.add_spent_secs(session, self.job_id, self._timer.take())
            self._publish_if_due(
                "confirming the winners",
                race.task.task_id,
                is_measuring_cpu=device.runner.shares_cores,
            )

        deadline = self._final_time.deadline(
            self._limits.budget, self._timer.secs, self._context.now
        )
        final = finals.Final(races, device, deadline, on_heat)
        await final.run()
        final.store(sessions, partial(self._context.clock_factor, self.target_id))

    def _publish_if_due(
        self, phase: str, current: int | None = None, *, is_measuring_cpu: bool = False
    ) -> None:
        if not self._publisher.is_due:
            return
        snapshot, budget = self.snapshot(), self._limits.budget
        status = TuningStatus(
            phase,
            snapshot,
            budget,
            snapshot.spent_trials(budget.trials),
            self._timer.secs,
            current,
            is_measuring_cpu,
            self._chooser.outlook,
            self._chooser.trials_to_stop,
        )
        gains = self._chooser.gains(snapshot) if current is None else None
        self._publisher.publish(StatusUpdate(status, gains))
