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
from tuner.devices.device import Device
from tuner.engines.base import TargetInfo
from tuner.errors import DeviceApart, DeviceLost, TunerError, WorkError
from tuner.tuning import event_loop
from tuner.tuning.calibration.calibrator import CalibrationSettings, Calibrator
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
class _ActiveJob:
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
        # Looked at for every seat whenever a round is given away.
        self.job_id, self.target_id = self.session.job_id, self.session.target_id

    @property
    def share(self) -> JobShare:
        """What the fair queue needs to know."""
        return JobShare(self.job_id, self.session.priority, self.virtual_secs, self.n_rounds)


class _RunningRound(NamedTuple):
    """What a device does for a job: a round, or the final if there is no pick."""

    seat: _ActiveJob
    device: Device
    pick: Pick | None
    started: float


class _PendingPick(NamedTuple):
    """A round that was given away, and is to be stored before it starts."""

    seat: _ActiveJob
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
        interrupted: What becomes of jobs under way when the run is interrupted.
        stays: Whether it waits for jobs when it has none.
        loop_factory: Makes the event loop, whose clock is the clock.
        calibration: When devices are kept apart that disagree.
    """

    def __init__(
        self,
        context: TuningContext,
        source: JobSource | None = None,
        *,
        interrupted: JobState = "paused",
        stays: bool = False,
        loop_factory: event_loop.LoopFactory = event_loop.new_loop,
        calibration: CalibrationSettings = CalibrationSettings(),  # noqa: B008  it is frozen
    ) -> None:
        self._context = context
        self._intake = JobPoller(source, context.cpu_gate)
        self._interrupted: JobState = interrupted
        self._stays = stays
        self._loop_factory = loop_factory
        self._seats: dict[int, _ActiveJob] = {}
        self._errands: dict[asyncio.Task[bool | None], _RunningRound] = {}
        self._drafts: list[_PendingPick] = []
        self._asking: dict[asyncio.Task[None], Device] = {}
        self._calibrator = Calibrator(context, calibration, self._ask)
        self._roster = DeviceHeartbeat(context)
        self._typical_secs = 0.0
        self._owing: dict[int, float] = {}
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
        self._ended = asyncio.Event()
        try:
            self._admit(first)
            while True:
                self._collect()
                self._take_in()
                if self._hand_out():
                    await asyncio.sleep(0)
                elif self._is_over():
                    return
                else:
                    await self._wait()
        finally:
            await self._put_away()

    def _is_over(self) -> bool:
        """Nothing is left to do, and nobody brings more."""
        return not (self._seats or self._errands or self._stays) and self._intake.is_empty

    async def _wait(self) -> None:
        """Wait until anything ends, or for a moment."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), _POLL_SECS)
        self._ended.clear()

    def _collect(self) -> None:
        """Look at what has ended."""
        for task in [each for each in self._errands if each.done()]:
            errand = self._errands.pop(task)
            self._charge(errand)
            self._look_at(errand, task)
        for asking in [each for each in self._asking if each.done()]:
            self._answered(self._asking.pop(asking), asking)

    def _look_at(self, errand: _RunningRound, task: "asyncio.Task[bool | None]") -> None:
        seat = errand.seat
        try:
            finished = task.result()
        except DeviceApart:
            seat.ending = False
        except DeviceLost as error:
            self._set_aside(errand.device, error)
            seat.ending = False
        except asyncio.CancelledError:  # its job failed elsewhere
            return
        except FATAL_DB_ERRORS:
            raise
        except Exception as error:
            self._fail_by(seat, error)
        else:
            seat.ending = False
            errand.device.n_losses = 0
            if finished and errand.pick is None:
                self._end(seat)
        seat.idle = False
        self._intake.is_due = True

    def _charge(self, errand: _RunningRound) -> None:
        """Note that a device is free again, and what the job owes for it."""
        seat, device, now = errand.seat, errand.device, self._context.now()
        secs = now - max(errand.started, device.free_since)
        device.n_rounds -= 1
        device.free_since = now
        seat.n_rounds -= 1
        if errand.pick is not None:
            self._typical_secs = 0.8 * self._typical_secs + 0.2 * secs
        seat.virtual_secs = fairness.charge(seat.share, secs)
        if not self._owing:
            self._context.record_writer.write(self._save_virtual_secs)
        self._owing[seat.session.job_id] = seat.virtual_secs

    def _save_virtual_secs(self, session: Session) -> None:
        owing, self._owing = self._owing, {}
        jobs.set_all_virtual_secs(session, owing)

    def _set_aside(self, device: Device, error: DeviceLost) -> None:
        """Give a device that was lost nothing for a while, should it still be there."""
        _LOG.warning("device %s is lost: %s", device.name, error)
        device.set_aside(str(error))

    def _take_in(self) -> None:
        """Admit the jobs that the source brought, and ask it for more."""
        openings = self._intake.take(self._seats, self._context.has_multiple_devices, self._ended)
        opened = [opening(self._context) for opening in openings]
        self._admit([session for session in opened if session is not None])

    def _admit(self, new: Sequence[TuningSession]) -> None:
        """Start sessions; a job joins where the one furthest behind is."""
        others = [seat.share for seat in self._seats.values()]
        for session in new:
            seat = _ActiveJob(session, fairness.join(0.0, others))
            with self._context.sessions.begin() as database:
                # Virtual times count from when the first of these jobs began, not for ever.
                jobs.set_virtual_secs(database, session.job_id, seat.virtual_secs)
            session.start()
            self._seats[session.job_id] = seat
            self._calibrator.is_due = True

    def _hand_out(self) -> bool:
        """Give devices that may have more rounds a round each; whether there may be more."""
        self._context.refresh()
        self._calibrator.tend(self._targets)
        self._roster.tell(self._jobs_by_device)
        may_be_more = self._give_away()
        self._start_drafts()
        if not may_be_more:
            self._tell_who_waits()
        return may_be_more

    def _give_away(self) -> bool:
        """Give rounds away; whether there may be more to give."""
        # Once a target, of which there are few: of jobs and devices there may be many.
        seats = [seat for seat in self._seats.values() if not (seat.idle or seat.ending)]
        targets = {seat.session.target_id: seat.session.target for seat in seats}
        nothing_for: set[frozenset[int]] = set()
        n_given = 0
        for device in self._with_room():
            served = frozenset(i for i, each in targets.items() if self._serves(device, each))
            if served in nothing_for:
                continue
            if n_given >= _MOST_AT_ONCE:
                return True
            if self._give(device, served):
                n_given += 1
            else:
                nothing_for.add(served)
        return n_given > 0

    def _with_room(self) -> list[Device]:
        """Return the devices that may have a round more, those that have none first."""
        devices = [
            device
            for device in self._context.devices.values()
            if device.n_rounds < device.most_rounds and not (device.apart or device.is_barred)
        ]
        return sorted(devices, key=lambda device: device.n_rounds)

    def _tell_who_waits(self) -> None:
        """Tell the jobs that no device measures for, so that somebody sees why nothing happens.

        Those that were stopped end without a device.
        """
        devices = list(self._context.devices.values())
        for seat in list(self._seats.values()):
            if seat.n_rounds or self._asking:
                continue
            if any(self._measures(each, seat.session.target) for each in devices):
                continue
            if not seat.session.wait_for_device():
                self._end(seat)

    def _give(self, device: Device, served: Collection[int]) -> bool:
        """Give a device something to do for the targets it serves, if there is anything."""
        while (seat := self._choose(served)) is not None:
            if any(draft.seat is seat for draft in self._drafts):
                # What it chooses next depends on what it chose last, if it did not fail by it.
                self._start_drafts()
                continue
            try:
                chosen = seat.session.choose()
            except FATAL_DB_ERRORS:
                raise
            except Exception as error:
                self._fail_by(seat, error)
                continue
            if isinstance(chosen, NewPick):
                self._occupy(seat, device)
                self._context.task_states.announce(chosen.task_id)
                self._drafts.append(_PendingPick(seat, device, chosen))
                return True
            if chosen is not None:
                self._occupy(seat, device)
                self._start_round(seat, device, chosen)
                return True
            if not seat.n_rounds:
                seat.ending = True
                self._occupy(seat, device)
                self._start(seat, device, None, seat.session.finish(device))
                return True
            seat.idle = True
        return False

    def _start_drafts(self) -> None:
        """Store all rounds that were given away, and start them."""
        drafts, self._drafts = self._drafts, []
        for draft in drafts:
            self._context.task_states.withdraw(draft.new.task_id)
        if drafts:
            self._store(drafts)

    def _store(self, drafts: list[_PendingPick]) -> None:
        try:
            stored = self._context.store_picks([draft.new for draft in drafts])
        except FATAL_DB_ERRORS:
            raise
        except Exception as error:
            self._part(drafts, error)
            return
        for draft, pick in zip(drafts, stored, strict=True):
            self._start_round(draft.seat, draft.device, pick)

    def _part(self, drafts: list[_PendingPick], error: Exception) -> None:
        """Store what cannot be stored together one by one: who is refused has failed."""
        if len(drafts) == 1:
            ((seat, device, _),) = drafts
            device.n_rounds -= 1
            seat.n_rounds -= 1
            self._fail_by(seat, error)
            return
        for draft in drafts:
            self._store([draft])

    def _choose(self, served: Collection[int]) -> _ActiveJob | None:
        """Return the job furthest behind that has something to do for some targets."""
        shares = [
            seat.share
            for seat in self._seats.values()
            if not (seat.idle or seat.ending) and seat.target_id in served
        ]
        job_id = fairness.choose_job(shares, typical_secs=self._typical_secs)
        return None if job_id is None else self._seats[job_id]

    def _serves(self, device: Device, target: TargetInfo) -> bool:
        """Whether a device measures for a target; who was not asked is asked."""
        if device.serves(target) is None and device not in self._asking.values():
            self._ask(device, device.ask(target))
        return self._measures(device, target)

    def _measures(self, device: Device, target: TargetInfo) -> bool:
        """Whether a device gets rounds of a target now."""
        serves = device.serves(target) and not device.apart
        return bool(serves) and self._calibrator.admits(device, target)

    def _ask(self, device: Device, question: Coroutine[Any, Any, None]) -> None:
        asking = asyncio.ensure_future(question)
        self._asking[asking] = device
        asking.add_done_callback(lambda _: self._ended.set())

    def _targets(self) -> dict[int, TargetInfo]:
        sessions = [seat.session for seat in self._seats.values()]
        return {session.target_id: session.target for session in sessions}

    def _jobs_by_device(self) -> dict[str, int]:
        errands = self._errands.values()
        return {errand.device.name: errand.seat.session.job_id for errand in errands}

    def _answered(self, device: Device, asking: "asyncio.Task[None]") -> None:
        self._calibrator.is_due = True
        error = asking.exception()
        if error is None:
            return
        if isinstance(error, FATAL_DB_ERRORS) or not isinstance(error, Exception):
            raise error
        if not isinstance(error, TunerError | OSError):
            _LOG.error("a question to device %s failed", device.name, exc_info=error)
        self._set_aside(device, DeviceLost(str(error)))

    def _occupy(self, seat: _ActiveJob, device: Device) -> None:
        device.n_rounds += 1
        seat.n_rounds += 1

    def _start_round(self, seat: _ActiveJob, device: Device, pick: Pick) -> None:
        seat.session.take_off(pick)
        self._start(seat, device, pick, self._round(seat.session, pick, device))

    def _start(
        self,
        seat: _ActiveJob,
        device: Device,
        pick: Pick | None,
        work: Coroutine[Any, Any, bool | None],
    ) -> None:
        """Start a round, or the final, on a device."""
        task: asyncio.Task[bool | None] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._ended.set())
        self._errands[task] = _RunningRound(seat, device, pick, self._context.now())

    async def _round(self, session: TuningSession, pick: Pick, device: Device) -> bool | None:
        await session.run_round(pick, device)
        return None

    def _fail_by(self, seat: _ActiveJob, error: Exception) -> None:
        """Fail a job by whatever was raised: the others go on."""
        if not isinstance(error, TunerError):
            # A defect of ours, or data that the database refuses.
            _LOG.error("job %d failed", seat.job_id, exc_info=error)
            error = WorkError(f"internal error: {type(error).__name__}: {error}")
        self._fail(seat, error)

    def _fail(self, seat: _ActiveJob, error: TunerError) -> None:
        session = seat.session
        _LOG.info("failed: %s", error, extra={"job": session.job_id})
        if session.job_id not in self._seats:
            return
        session.rest("failed", str(error))
        if not self._stays:
            # Nobody asks for them where jobs come and go; tracebacks would keep all of a job.
            self.failures[session.job_id] = error
        self._end(seat)
        for task, errand in self._errands.items():
            if errand.seat is seat:
                task.cancel()

    def _end(self, seat: _ActiveJob) -> None:
        if self._seats.pop(seat.session.job_id, None) is not None:
            seat.session.rest(self._interrupted)

    async def _put_away(self) -> None:
        """Let the jobs rest that are under way; without a database they stay as they are."""
        tasks = [*self._errands, *self._asking, *self._intake.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        is_there = self._write_the_rest()
        self.unfinished = set(self._seats)
        for seat in self._seats.values():
            # Who asks a database that is away for one job after the other waits for hours.
            is_there = is_there and self._rest(seat)
        self._seats.clear()

    def _write_the_rest(self) -> bool:
        """Write what is told; whether there is a database to write to."""
        try:
            self._roster.tell_now({})
            self._context.record_writer.flush()
        except FATAL_DB_ERRORS as error:
            _LOG.warning("what was measured last is lost: %s", type(error).__name__)
            return False
        return True

    def _rest(self, seat: _ActiveJob) -> bool:
        try:
            seat.session.rest(self._interrupted)
        except FATAL_DB_ERRORS as error:
            job_id = seat.session.job_id
            _LOG.warning("job %d and others stay as they are: %s", job_id, type(error).__name__)
            return False
        return True
