"""Coordination of several jobs on several devices: assigns each free device its next round.

A coordinator is one event loop in one thread. Rounds run as tasks of it; decisions and writes are
plain code that runs between two steps of those tasks, and so never twice at once.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy.orm import Session

from records import jobs
from records.models import JobState, Pick
from records.picks import NewPick
from scheduler import fairness
from tuner.devices.calibration.calibrator import CalibrationSettings
from tuner.devices.device import Device
from tuner.engines.base import TargetInfo
from tuner.errors import DeviceApart, DeviceLost, DiskFull, OutOfTime, TunerError, WorkError
from tuner.files import disk_floor
from tuner.tuning import event_loop
from tuner.tuning.context import TuningContext
from tuner.tuning.devices.device_manager import DeviceManager
from tuner.tuning.job.active_job import ActiveJob, PendingPick, PickBatch, RunningRound
from tuner.tuning.session import WAITING, TuningSession
from tuner.tuning.writing.storage_retry import FATAL_DB_ERRORS

# Longest wait before the limits of jobs and the list of devices are read again.
_REFRESH_INTERVAL_SECS = 0.5
# Rounds that are assigned, and whose picks are stored together, before results are handled.
_MAX_ROUNDS_PER_DISPATCH = 16
# Estimated seconds of a round before one has ended: of jobs with equal virtual time, the one with
# the fewest rounds goes next.
_FIRST_ROUND_SECS = 1.0
# Weight of the latest round in the moving average of the seconds that a round takes.
_ROUND_SECS_WEIGHT = 0.2

_LOG = logging.getLogger(__name__)


class Coordinator:
    """Assigns rounds to jobs by priority, fair over the device seconds that their rounds take.

    A job that fails for any reason does not end the others. Jobs that share tasks share their
    records: each is credited with what another measures.

    Args:
        context: Dependencies of the sessions, made for this run.
        state_on_interrupt: State of the active jobs after an interrupt.
        keep_running: True to continue without jobs until the run is cancelled.
        calibration: Limits on how far devices may differ.

    Attributes:
        failures: Errors of failed jobs, by job id; not kept with ``keep_running``.
        unfinished: Ids of the jobs that were active when the run ended.
    """

    def __init__(
        self,
        context: TuningContext,
        *,
        state_on_interrupt: JobState = "paused",
        keep_running: bool = False,
        calibration: CalibrationSettings = CalibrationSettings(),  # noqa: B008  it is frozen
    ) -> None:
        self._context = context
        self._state_on_interrupt: JobState = state_on_interrupt
        self._keep_running = keep_running
        self._active_jobs: dict[int, ActiveJob] = {}
        self._owners = fairness.OwnerTimes()
        # Jobs that accept rounds, by target and id, as of the present dispatch.
        self._shares: dict[int, dict[int, fairness.JobShare]] = defaultdict(dict)
        self._running_rounds: dict[asyncio.Task[bool | None], RunningRound] = {}
        self._pick_batch = PickBatch(context)
        self._wake = asyncio.Event()
        self._devices = DeviceManager(context, calibration, self._wake.set)
        self._typical_secs = _FIRST_ROUND_SECS
        self._next_look = 0.0
        self._unsaved_virtual_secs: dict[int, float] = {}
        self.failures: dict[int, TunerError] = {}
        self.unfinished: set[int] = set()

    @property
    def active_job_ids(self) -> frozenset[int]:
        """Ids of the jobs that were admitted and have not ended."""
        return frozenset(self._active_jobs)

    def run(self, sessions: Sequence[TuningSession] = ()) -> None:
        """Run jobs in an event loop of their own until none has anything left to do.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost, or the
                right to write to it; see :data:`FATAL_DB_ERRORS`. The jobs can be resumed.
        """
        event_loop.run(self.serve(sessions))

    async def serve(self, sessions: Sequence[TuningSession] = ()) -> None:
        """Run jobs, including jobs that :meth:`admit` adds later, in the current event loop.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: As :meth:`run`.
        """
        try:
            for session in sessions:
                self.admit(session)
            while True:
                self._reap_finished()
                if self._dispatch():
                    await asyncio.sleep(0)
                elif not (self._active_jobs or self._running_rounds or self._keep_running):
                    return
                else:
                    await self._wait()
        finally:
            await self._shutdown()

    def admit(self, session: TuningSession) -> None:
        """Start a session; it is charged as much time as the active job that had the least.

        Must be called in the thread of the event loop.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        others = [job.share for job in self._active_jobs.values()]
        self._owners.join(session.owner, others)
        # Among the jobs of its owner: owners have virtual times of their own.
        own = [share for share in others if share.owner == session.owner]
        job = ActiveJob(session, fairness.join(0.0, own or others))
        with self._context.sessions.begin() as database:
            # Virtual times count from the start of the oldest active job, not for ever.
            jobs.set_virtual_secs(database, job.job_id, job.virtual_secs)
        session.start()
        self._active_jobs[job.job_id] = job
        self._devices.on_job_admitted()
        self._wake.set()

    async def _wait(self) -> None:
        """Wait until a round or a question to a device ends, at most for the refresh interval."""
        # Not wait_for, which on Python 3.11 loses a request to cancel that arrives with the event.
        with suppress(TimeoutError):
            async with asyncio.timeout(_REFRESH_INTERVAL_SECS):
                await self._wake.wait()
        self._wake.clear()

    def _reap_finished(self) -> None:
        """Handle the results of the rounds and of the questions to devices that ended."""
        for task in [task for task in self._running_rounds if task.done()]:
            running = self._running_rounds[task]
            self._charge(running)
            # Not before: an error of the database leaves the round for the shutdown.
            del self._running_rounds[task]
            self._handle_result(running, task)
        self._devices.reap_queries()

    def _handle_result(self, running: RunningRound, task: "asyncio.Task[bool | None]") -> None:
        job = running.job
        try:
            is_done = task.result()
        except DeviceApart:
            job.is_finishing = False
        except DeviceLost as error:
            self._devices.mark_lost(running.device, error)
            job.is_finishing = False
        except DiskFull as error:
            job.is_finishing = False
            self._handle_full_disk(running, error)
        except asyncio.CancelledError:  # another round of its job failed
            if running.pick is not None and job.job_id not in self._active_jobs:
                # A round that was cancelled before its first step did not note that itself.
                self._context.task_states.round_finished(running.pick, completed=False)
            return
        except FATAL_DB_ERRORS:
            raise
        except Exception as error:
            self._fail_with(job, error)
        else:
            job.is_finishing = False
            running.device.n_losses = 0
            if is_done and running.pick is None:
                self._finish(job)
        job.is_idle = False

    def _handle_full_disk(self, running: RunningRound, error: DiskFull) -> None:
        """Have a service wait for disk space, unless it has enough: another disk is full then."""
        job, disk = running.job, self._context.disk
        if disk is None:
            self._fail_with(job, error)
        elif not disk.has_room or not job.is_stuck(running.started, self._context.now()):
            disk.note_full(str(error))
        else:
            reason = "a builder or a device has no disk space, or a quota is reached"
            advice = "free space where they keep temporary files, then resume the job"
            self._fail_with(job, DiskFull(f"cannot measure: {reason}; {advice}"))

    def _charge(self, running: RunningRound) -> None:
        """Free the device of a round, and charge the job for the seconds that it was used."""
        job, device, now = running.job, running.device, self._context.now()
        secs = now - max(running.started, device.free_since)
        device.n_rounds -= 1
        device.free_since = now
        job.n_rounds -= 1
        if running.pick is not None:
            self._typical_secs += _ROUND_SECS_WEIGHT * (secs - self._typical_secs)
        self._owners.charge(job.share, secs)
        job.virtual_secs = fairness.charge(job.share, secs)
        if not self._unsaved_virtual_secs:
            self._context.record_writer.write(self._save_virtual_secs)
        self._unsaved_virtual_secs[job.job_id] = job.virtual_secs

    def _save_virtual_secs(self, session: Session) -> None:
        unsaved, self._unsaved_virtual_secs = self._unsaved_virtual_secs, {}
        jobs.set_all_virtual_secs(session, unsaved)

    def _dispatch(self) -> bool:
        """Assign rounds to the devices that accept them.

        Returns:
            Whether there may be more to assign at once.
        """
        self._devices.refresh(self._targets, self._jobs_by_device)
        assigned = [] if self._context.lacks_disk else self._dispatch_rounds()
        self._start_pending()
        # Every device was asked unless the limit was reached; most take one round only.
        may_be_more = len(assigned) >= _MAX_ROUNDS_PER_DISPATCH or any(
            device.has_room for device in assigned
        )
        if not may_be_more:
            self._report_waiting()
        return may_be_more

    def _dispatch_rounds(self) -> list[Device]:
        """Assign a round to each device that accepts one; return these devices."""
        assigned: list[Device] = []
        devices = self._devices.with_room()
        if not devices:
            return assigned
        # Targets are few, while jobs and devices may be many: a device is asked once per target.
        targets: dict[int, TargetInfo] = {}
        self._shares.clear()
        for job in self._active_jobs.values():
            if job.accepts_rounds:
                targets.setdefault(job.target_id, job.session.target)
                self._shares[job.target_id][job.job_id] = job.share
        without_work: set[frozenset[int]] = set()
        for device in devices:
            target_ids = self._devices.served(device, targets)
            if target_ids in without_work:
                continue
            if len(assigned) >= _MAX_ROUNDS_PER_DISPATCH:
                break
            if self._assign_round(device, target_ids):
                assigned.append(device)
            else:
                without_work.add(target_ids)
        return assigned

    def _assign_round(self, device: Device, target_ids: Collection[int]) -> bool:
        """Assign work for some targets to a device; returns whether there was any."""
        while (job := self._next_job(target_ids)) is not None:
            if job in self._pick_batch:
                self._start_pending()
                continue
            try:
                pick = job.session.next_pick()
            except FATAL_DB_ERRORS:
                raise
            except Exception as error:
                self._fail_with(job, error)
                continue
            if pick is None and job.n_rounds:
                job.is_idle = True
                self._update_share(job)
                continue
            job.is_finishing = pick is None
            device.n_rounds += 1
            job.n_rounds += 1
            self._update_share(job)
            if pick is None:
                self._start(job, device, None, job.session.finish(device))
            elif isinstance(pick, NewPick):
                self._pick_batch.add(PendingPick(job, device, pick))
            else:
                self._start_round(job, device, pick)
            return True
        return False

    def _next_job(self, target_ids: Collection[int]) -> ActiveJob | None:
        """Return the job that may have work for some targets and is furthest behind."""
        shares = [share for target_id in target_ids for share in self._shares[target_id].values()]
        job_id = fairness.choose_job(
            shares, self._owners.virtual_secs, typical_secs=self._typical_secs
        )
        return None if job_id is None else self._active_jobs[job_id]

    def _update_share(self, job: ActiveJob) -> None:
        """Let the choices of this dispatch know that a job has changed."""
        shares = self._shares[job.target_id]
        if job.accepts_rounds and job.job_id in self._active_jobs:
            shares[job.job_id] = job.share
        else:
            shares.pop(job.job_id, None)

    def _start_pending(self) -> None:
        """Store the picks of the batch and start their rounds; a refused pick fails its job."""
        for (job, device, new), outcome in self._pick_batch.store():
            if isinstance(outcome, Pick):
                self._start_round(job, device, outcome)
                continue
            device.n_rounds -= 1
            job.n_rounds -= 1
            self._context.task_states.release(new.task_id)
            self._fail_with(job, outcome)

    def _start_round(self, job: ActiveJob, device: Device, pick: Pick) -> None:
        job.session.on_round_started(pick)
        self._start(job, device, pick, job.session.run_round(pick, device))

    def _start(
        self,
        job: ActiveJob,
        device: Device,
        pick: Pick | None,
        work: Coroutine[Any, Any, bool | None],
    ) -> None:
        """Start a round on a device, or the confirmation of winners if there is no pick."""
        task: asyncio.Task[bool | None] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._wake.set())
        self._running_rounds[task] = RunningRound(job, device, pick, self._context.now())

    def _report_waiting(self) -> None:
        """Publish that jobs wait for a device or disk space, and end stopped jobs."""
        lacks_disk, now = self._context.lacks_disk, self._context.now()
        reason: str | None = disk_floor.WAITING if lacks_disk else WAITING
        if self._devices.queries:
            if now < self._next_look:
                return
            # A device that is asked may be about to measure. Some device always is in large fleets,
            # and jobs that were stopped must end all the same.
            if not lacks_disk:
                reason = None
        self._next_look = now + _REFRESH_INTERVAL_SECS
        for job in list(self._active_jobs.values()):
            if job.n_rounds or (not lacks_disk and self._devices.measures(job.session.target)):
                continue
            if not job.session.report_waiting(reason):
                self._finish(job)

    def _targets(self) -> dict[int, TargetInfo]:
        return {job.target_id: job.session.target for job in self._active_jobs.values()}

    def _jobs_by_device(self) -> dict[str, int]:
        running_rounds = self._running_rounds.values()
        return {running.device.name: running.job.job_id for running in running_rounds}

    def _fail_with(self, job: ActiveJob, error: Exception) -> None:
        """Fail a job by any exception; the others continue."""
        if not isinstance(error, TunerError):
            # A defect of the tuner, or data that the database refuses.
            _LOG.error("job %d failed", job.job_id, exc_info=error)
            error = WorkError(f"internal error: {type(error).__name__}: {error}")
        _LOG.info("failed: %s", error, extra={"job": job.job_id})
        if job.job_id not in self._active_jobs:
            return
        may_resume = isinstance(error, OutOfTime) and not self._keep_running
        job.session.suspend(self._state_on_interrupt if may_resume else "failed", str(error))
        if not self._keep_running:
            # A service never reads them; their tracebacks would keep all of a job in memory.
            self.failures[job.job_id] = error
        self._finish(job)
        for task, running in self._running_rounds.items():
            if running.job is job:
                task.cancel()

    def _finish(self, job: ActiveJob) -> None:
        if self._active_jobs.pop(job.job_id, None) is not None:
            self._update_share(job)
            job.session.suspend(self._state_on_interrupt)

    async def _shutdown(self) -> None:
        """Suspend the active jobs; without a database they stay as they are."""
        tasks = [*self._running_rounds, *self._devices.queries]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        has_database = self._flush_on_shutdown()
        self.unfinished = set(self._active_jobs)
        for job in self._active_jobs.values():
            # After one failure the others are left out, because each attempt may take minutes.
            if has_database:
                has_database = self._suspend(job)
            else:
                job.session.leave_rounds()
        self._active_jobs.clear()

    def _flush_on_shutdown(self) -> bool:
        """Write what is waiting; returns whether there is a database to write to."""
        try:
            self._devices.report_last()
            self._context.record_writer.flush()
        except FATAL_DB_ERRORS as error:
            _LOG.warning("the latest measurements are lost: %s", type(error).__name__)
            return False
        return True

    def _suspend(self, job: ActiveJob) -> bool:
        try:
            job.session.suspend(self._state_on_interrupt)
        except FATAL_DB_ERRORS as error:
            reason = type(error).__name__
            _LOG.warning("job %d and others stay as they are: %s", job.job_id, reason)
            return False
        return True
