"""Several jobs on several devices: who gets the next round, until all are done.

One thread, one event loop: rounds run as tasks of it, and everything else happens between them.
"""

import asyncio
import logging
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from records import jobs
from records.models import JobState, Pick
from records.picks import NewPick
from scheduler import fairness
from scheduler.fairness import JobShare
from tuner.devices.calibration.calibrator import CalibrationSettings
from tuner.devices.device import Device
from tuner.engines.base import TargetInfo
from tuner.errors import DeviceApart, DeviceLost, TunerError, WorkError
from tuner.tuning import event_loop
from tuner.tuning.calibration_log import make_calibrator
from tuner.tuning.context import TuningContext
from tuner.tuning.device_heartbeat import DeviceHeartbeat
from tuner.tuning.job_queue import JobPoller, JobSource
from tuner.tuning.session import TuningSession
from tuner.tuning.storage_retry import FATAL_DB_ERRORS

# Whether somebody asked something of a job, or a device came, is looked up so often.
_POLL_SECS = 0.5
# Rounds that are given away, and stored together, before what others brought is looked at.
_MOST_AT_ONCE = 16

_LOG = logging.getLogger(__name__)


@dataclass
class ActiveJob:
    """A job under way.

    Attributes:
        session: The job.
        virtual_secs: By which devices are shared.
        n_rounds: Under way.
        idle: Whether it had no pick when it was asked last, and nothing happened since.
        ending: Whether its winners are being confirmed.
    """

    session: TuningSession
    virtual_secs: float
    n_rounds: int = 0
    idle: bool = False
    ending: bool = False

    def __post_init__(self) -> None:
        # Looked at for every job whenever a round is given away.
        self.job_id, self.target_id = self.session.job_id, self.session.target_id

    @property
    def share(self) -> JobShare:
        """What the fair queue needs to know."""
        return JobShare(self.job_id, self.session.priority, self.virtual_secs, self.n_rounds)


class RunningRound(NamedTuple):
    """What a device does for a job: a round, or the final if there is no pick."""

    job: ActiveJob
    device: Device
    pick: Pick | None
    started: float


class PendingPick(NamedTuple):
    """A round that was given away, and is to be stored before it starts."""

    job: ActiveJob
    device: Device
    new: NewPick


class Coordinator:
    """Gives rounds to jobs by priority, fair over the seconds that rounds take.

    A job that fails, in whatever way, does not end the others; see :attr:`failures`, and
    :attr:`unfinished` for those that were under way when the run ended. Jobs that share tasks
    share their records: what one measures, the others are credited with.

    Args:
        context: What the sessions share; of one run.
        source: Brings jobs that came in meanwhile.
        state_on_interrupt: What becomes of jobs under way when the run is interrupted.
        keep_running: Whether it waits for jobs when it has none.
        loop_factory: Makes the event loop, whose clock is the clock.
        calibration: When devices are kept apart that disagree.
    """

    def __init__(
        self,
        context: TuningContext,
        source: JobSource | None = None,
        *,
        state_on_interrupt: JobState = "paused",
        keep_running: bool = False,
        loop_factory: event_loop.LoopFactory = event_loop.new_loop,
        calibration: CalibrationSettings = CalibrationSettings(),  # noqa: B008  it is frozen
    ) -> None:
        self._context = context
        self._job_poller = JobPoller(source, context.cpu_gate)
        self._state_on_interrupt: JobState = state_on_interrupt
        self._keep_running = keep_running
        self._loop_factory = loop_factory
        self._active_jobs: dict[int, ActiveJob] = {}
        self._running_rounds: dict[asyncio.Task[bool | None], RunningRound] = {}
        self._pending_picks: list[PendingPick] = []
        self._device_queries: dict[asyncio.Task[None], Device] = {}
        self._calibrator = make_calibrator(context, calibration, self._ask)
        self._heartbeat = DeviceHeartbeat(context)
        self._typical_secs = 0.0
        self._unsaved_virtual_secs: dict[int, float] = {}
        self.failures: dict[int, TunerError] = {}
        self.unfinished: set[int] = set()

    def run(self, first: Sequence[TuningSession] = ()) -> None:
        """Run jobs, and those that the source brings, until none has anything left to do.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost, or the
                right to write to it; see :data:`FATAL_DB_ERRORS`. The jobs can go on later.
        """
        event_loop.run(self._run(first), self._loop_factory)

    async def _run(self, first: Sequence[TuningSession]) -> None:
        self._wake = asyncio.Event()
        try:
            self._admit(first)
            while True:
                self._reap_finished()
                self._admit_new_jobs()
                if self._dispatch():
                    await asyncio.sleep(0)
                elif self._is_over():
                    return
                else:
                    await self._wait()
        finally:
            await self._shutdown()

    def _is_over(self) -> bool:
        """Nothing is left to do, and nobody brings more."""
        return (
            not (self._active_jobs or self._running_rounds or self._keep_running)
            and self._job_poller.has_no_jobs
        )

    async def _wait(self) -> None:
        """Wait until anything ends, or for a moment."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), _POLL_SECS)
        self._wake.clear()

    def _reap_finished(self) -> None:
        """Look at what has ended."""
        for task in [each for each in self._running_rounds if each.done()]:
            running = self._running_rounds.pop(task)
            self._settle(running)
            self._handle_result(running, task)
        for asking in [each for each in self._device_queries if each.done()]:
            self._handle_answer(self._device_queries.pop(asking), asking)

    def _handle_result(self, running: RunningRound, task: "asyncio.Task[bool | None]") -> None:
        job = running.job
        try:
            finished = task.result()
        except DeviceApart:
            job.ending = False
        except DeviceLost as error:
            self._set_aside(running.device, error)
            job.ending = False
        except asyncio.CancelledError:  # its job failed elsewhere
            return
        except FATAL_DB_ERRORS:
            raise
        except Exception as error:
            self._fail_with(job, error)
        else:
            job.ending = False
            running.device.n_losses = 0
            if finished and running.pick is None:
                self._finish(job)
        job.idle = False
        self._job_poller.is_due = True

    def _settle(self, running: RunningRound) -> None:
        """Note that a device is free again, and what the job owes for it."""
        job, device, now = running.job, running.device, self._context.now()
        secs = now - max(running.started, device.free_since)
        device.n_rounds -= 1
        device.free_since = now
        job.n_rounds -= 1
        if running.pick is not None:
            self._typical_secs = 0.8 * self._typical_secs + 0.2 * secs
        job.virtual_secs = fairness.charge(job.share, secs)
        if not self._unsaved_virtual_secs:
            self._context.record_writer.write(self._save_virtual_secs)
        self._unsaved_virtual_secs[job.session.job_id] = job.virtual_secs

    def _save_virtual_secs(self, session: Session) -> None:
        owing, self._unsaved_virtual_secs = self._unsaved_virtual_secs, {}
        jobs.set_all_virtual_secs(session, owing)

    def _set_aside(self, device: Device, error: DeviceLost) -> None:
        """Give a device that was lost nothing for a while, should it still be there."""
        _LOG.warning("device %s is lost: %s", device.name, error)
        device.mark_lost(str(error))

    def _admit_new_jobs(self) -> None:
        """Admit the jobs that the source brought, and ask it for more."""
        openings = self._job_poller.poll(
            self._active_jobs, self._context.has_multiple_devices, self._wake
        )
        opened = [opening(self._context) for opening in openings]
        self._admit([session for session in opened if session is not None])

    def _admit(self, new: Sequence[TuningSession]) -> None:
        """Start sessions; a job joins where the one furthest behind is."""
        others = [job.share for job in self._active_jobs.values()]
        for session in new:
            job = ActiveJob(session, fairness.join(0.0, others))
            with self._context.sessions.begin() as database:
                # Virtual times count from when the first of these jobs began, not for ever.
                jobs.set_virtual_secs(database, session.job_id, job.virtual_secs)
            session.start()
            self._active_jobs[session.job_id] = job
            self._calibrator.is_due = True

    def _dispatch(self) -> bool:
        """Give devices that may have more rounds a round each; whether there may be more."""
        self._context.refresh()
        self._calibrator.update(self._targets)
        self._heartbeat.beat_if_due(self._jobs_by_device)
        may_be_more = self._dispatch_rounds()
        self._start_pending()
        if not may_be_more:
            self._report_waiting()
        return may_be_more

    def _dispatch_rounds(self) -> bool:
        """Give rounds away; whether there may be more to give."""
        # Once a target, of which there are few: of jobs and devices there may be many.
        jobs_with_work = [job for job in self._active_jobs.values() if not (job.idle or job.ending)]
        targets = {job.session.target_id: job.session.target for job in jobs_with_work}
        nothing_for: set[frozenset[int]] = set()
        n_given = 0
        for device in self._devices_with_room():
            served = frozenset(i for i, each in targets.items() if self._serves(device, each))
            if served in nothing_for:
                continue
            if n_given >= _MOST_AT_ONCE:
                return True
            if self._assign_round(device, served):
                n_given += 1
            else:
                nothing_for.add(served)
        return n_given > 0

    def _devices_with_room(self) -> list[Device]:
        """Return the devices that may have a round more, those that have none first."""
        devices = [
            device
            for device in self._context.devices.values()
            if device.n_rounds < device.max_rounds and not (device.loss_reason or device.is_blocked)
        ]
        return sorted(devices, key=lambda device: device.n_rounds)

    def _report_waiting(self) -> None:
        """Tell the jobs that no device measures for, so that somebody sees why nothing happens.

        Those that were stopped end without a device.
        """
        devices = list(self._context.devices.values())
        for job in list(self._active_jobs.values()):
            if job.n_rounds or self._device_queries:
                continue
            if any(self._measures(each, job.session.target) for each in devices):
                continue
            if not job.session.report_waiting():
                self._finish(job)

    def _assign_round(self, device: Device, served: Collection[int]) -> bool:
        """Give a device something to do for the targets it serves, if there is anything."""
        while (job := self._next_job(served)) is not None:
            if any(pick.job is job for pick in self._pending_picks):
                # What it chooses next depends on what it chose last, if it did not fail by it.
                self._start_pending()
                continue
            try:
                chosen = job.session.next_pick()
            except FATAL_DB_ERRORS:
                raise
            except Exception as error:
                self._fail_with(job, error)
                continue
            if isinstance(chosen, NewPick):
                self._reserve(job, device)
                self._context.task_states.reserve(chosen.task_id)
                self._pending_picks.append(PendingPick(job, device, chosen))
                return True
            if chosen is not None:
                self._reserve(job, device)
                self._start_round(job, device, chosen)
                return True
            if not job.n_rounds:
                job.ending = True
                self._reserve(job, device)
                self._start(job, device, None, job.session.finish(device))
                return True
            job.idle = True
        return False

    def _start_pending(self) -> None:
        """Store all rounds that were given away, and start them."""
        pending, self._pending_picks = self._pending_picks, []
        for pick in pending:
            self._context.task_states.release(pick.new.task_id)
        if pending:
            self._persist(pending)

    def _persist(self, pending: list[PendingPick]) -> None:
        try:
            stored = self._context.store_picks([pick.new for pick in pending])
        except FATAL_DB_ERRORS:
            raise
        except Exception as error:
            self._persist_one_by_one(pending, error)
            return
        for (job, device, _), pick in zip(pending, stored, strict=True):
            self._start_round(job, device, pick)

    def _persist_one_by_one(self, pending: list[PendingPick], error: Exception) -> None:
        """Store what cannot be stored together one by one: who is refused has failed."""
        if len(pending) == 1:
            ((job, device, _),) = pending
            device.n_rounds -= 1
            job.n_rounds -= 1
            self._fail_with(job, error)
            return
        for pick in pending:
            self._persist([pick])

    def _next_job(self, served: Collection[int]) -> ActiveJob | None:
        """Return the job furthest behind that has something to do for some targets."""
        shares = [
            job.share
            for job in self._active_jobs.values()
            if not (job.idle or job.ending) and job.target_id in served
        ]
        job_id = fairness.choose_job(shares, typical_secs=self._typical_secs)
        return None if job_id is None else self._active_jobs[job_id]

    def _serves(self, device: Device, target: TargetInfo) -> bool:
        """Whether a device measures for a target; who was not asked is asked."""
        if device.supports(target) is None and device not in self._device_queries.values():
            self._ask(device, device.query(target))
        return self._measures(device, target)

    def _measures(self, device: Device, target: TargetInfo) -> bool:
        """Whether a device gets rounds of a target now."""
        serves = device.supports(target) and not device.loss_reason
        return bool(serves) and self._calibrator.admits(device, target)

    def _ask(self, device: Device, question: Coroutine[Any, Any, None]) -> None:
        asking = asyncio.ensure_future(question)
        self._device_queries[asking] = device
        asking.add_done_callback(lambda _: self._wake.set())

    def _targets(self) -> dict[int, TargetInfo]:
        sessions = [job.session for job in self._active_jobs.values()]
        return {session.target_id: session.target for session in sessions}

    def _jobs_by_device(self) -> dict[str, int]:
        running_rounds = self._running_rounds.values()
        return {running.device.name: running.job.session.job_id for running in running_rounds}

    def _handle_answer(self, device: Device, asking: "asyncio.Task[None]") -> None:
        self._calibrator.is_due = True
        error = asking.exception()
        if error is None:
            return
        if isinstance(error, FATAL_DB_ERRORS) or not isinstance(error, Exception):
            raise error
        if not isinstance(error, TunerError | OSError):
            _LOG.error("a question to device %s failed", device.name, exc_info=error)
        self._set_aside(device, DeviceLost(str(error)))

    def _reserve(self, job: ActiveJob, device: Device) -> None:
        device.n_rounds += 1
        job.n_rounds += 1

    def _start_round(self, job: ActiveJob, device: Device, pick: Pick) -> None:
        job.session.on_round_started(pick)
        self._start(job, device, pick, self._round(job.session, pick, device))

    def _start(
        self,
        job: ActiveJob,
        device: Device,
        pick: Pick | None,
        work: Coroutine[Any, Any, bool | None],
    ) -> None:
        """Start a round, or the final, on a device."""
        task: asyncio.Task[bool | None] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._wake.set())
        self._running_rounds[task] = RunningRound(job, device, pick, self._context.now())

    async def _round(self, session: TuningSession, pick: Pick, device: Device) -> bool | None:
        await session.run_round(pick, device)
        return None

    def _fail_with(self, job: ActiveJob, error: Exception) -> None:
        """Fail a job by whatever was raised: the others go on."""
        if not isinstance(error, TunerError):
            # A defect of ours, or data that the database refuses.
            _LOG.error("job %d failed", job.job_id, exc_info=error)
            error = WorkError(f"internal error: {type(error).__name__}: {error}")
        self._fail(job, error)

    def _fail(self, job: ActiveJob, error: TunerError) -> None:
        session = job.session
        _LOG.info("failed: %s", error, extra={"job": session.job_id})
        if session.job_id not in self._active_jobs:
            return
        session.suspend("failed", str(error))
        if not self._keep_running:
            # Nobody asks for them where jobs come and go; tracebacks would keep all of a job.
            self.failures[session.job_id] = error
        self._finish(job)
        for task, running in self._running_rounds.items():
            if running.job is job:
                task.cancel()

    def _finish(self, job: ActiveJob) -> None:
        if self._active_jobs.pop(job.session.job_id, None) is not None:
            job.session.suspend(self._state_on_interrupt)

    async def _shutdown(self) -> None:
        """Let the jobs rest that are under way; without a database they stay as they are."""
        tasks = [*self._running_rounds, *self._device_queries, *self._job_poller.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        is_there = self._flush_on_shutdown()
        self.unfinished = set(self._active_jobs)
        for job in self._active_jobs.values():
            # Who asks a database that is away for one job after the other waits for hours.
            is_there = is_there and self._suspend(job)
        self._active_jobs.clear()

    def _flush_on_shutdown(self) -> bool:
        """Write what is told; whether there is a database to write to."""
        try:
            self._heartbeat.beat({})
            self._context.record_writer.flush()
        except FATAL_DB_ERRORS as error:
            _LOG.warning("what was measured last is lost: %s", type(error).__name__)
            return False
        return True

    def _suspend(self, job: ActiveJob) -> bool:
        try:
            job.session.suspend(self._state_on_interrupt)
        except FATAL_DB_ERRORS as error:
            job_id = job.session.job_id
            _LOG.warning("job %d and others stay as they are: %s", job_id, type(error).__name__)
            return False
        return True
