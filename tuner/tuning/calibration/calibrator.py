"""Devices that disagree, and those that drift: found by what one kernel takes on each of them.

Where two or more devices serve a target, each times the kernel before its first round, and again
now and then between two rounds. Who disagrees with the others gets no more rounds until it agrees.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from records import calibrations, drift, measure_records
from records.calibrations import NewCalibration
from tuner.devices.device import CalibrationState, Device
from tuner.engines.base import TargetInfo
from tuner.settings import DEFAULT_DEVICE_TOLERANCE
from tuner.tuning.calibration.kernel import CalibrationKernel
from tuner.tuning.calibration.outliers import Disagreement, find_disagreements
from tuner.tuning.context import TuningContext
from tuner.tuning.device_heartbeat import full_name, host_of

# How often a device is timed before it is kept apart, and how long after: what disturbs it passes.
_ATTEMPTS = 3
_PAUSE_SECS = 1.0
# A device that is apart has nothing else to do.
_TIMES_AS_OFTEN = 5.0
# A device that neither answers nor can be timed keeps the others waiting no longer.
_PATIENCE_SECS = 30.0
# Who is due is looked up so often, and whenever something happened.
_LOOK_SECS = 0.5
# From so many devices on, looking at all of them takes a fiftieth of the time at most.
_MANY = 16
_REST_PER_LOOK = 50.0
# What a device took counts for so many periods after it is gone.
_REMEMBERED_PERIODS = 2.0

_LOG = logging.getLogger(__name__)

Start = Callable[[Device, Coroutine[Any, Any, None]], None]


@dataclass(frozen=True)
class CalibrationSettings:
    """When devices disagree, and how often that is looked at.

    Attributes:
        tolerance: By which share devices of one kind may differ.
        period_secs: Between two calibrations of a device; one that is apart is tried more often.
    """

    tolerance: float = DEFAULT_DEVICE_TOLERANCE
    period_secs: float = 300.0


class Calibrator:
    """Keeps devices apart that disagree with the others; used by one thread.

    Args:
        context: Its devices.
        settings: When, and how strictly.
        start: Does something with a device, and calls :meth:`tend` after it ended.

    Attributes:
        is_due: Whether something happened since devices were looked at.
    """

    def __init__(self, context: TuningContext, settings: CalibrationSettings, start: Start) -> None:
        self._context = context
        self._settings = settings
        self._start = start
        self._groups: dict[int, _Group] = {}
        self._looked = self._rested = -math.inf
        self.is_due = True

    def tend(self, targets: Callable[[], Mapping[int, TargetInfo]]) -> None:
        """Say who may have rounds, and calibrate who is due.

        Args:
            targets: Returns what is tuned for, by id; asked if it is time to.
        """
        now = self._context.now()
        if now < self._rested or (not self.is_due and now - self._looked < _LOOK_SECS):
            return
        self.is_due, self._looked = False, now
        unbarred: set[str] = set()
        for target_id, target in targets().items():
            if target_id not in self._groups:
                self._groups[target_id] = self._open(target_id, target)
            unbarred |= self._look_at(self._groups[target_id], now)
        for device in self._context.devices.values():
            device.is_blocked = device.name not in unbarred
        if len(self._context.devices) > _MANY:
            done = self._context.now()
            self._rested = done + _REST_PER_LOOK * (done - now)

    def admits(self, device: Device, target: TargetInfo) -> bool:
        """Whether a device that serves a target gets rounds of it now."""
        standing = device.calibrations.get(target.spec)
        self.is_due |= standing is None
        return standing is not None and standing.is_admitted

    def _open(self, target_id: int, target: TargetInfo) -> "_Group":
        with self._context.sessions() as session:
            newest = measure_records.newest_id(session)
        return _Group(
            target_id, target, CalibrationKernel(self._context.measure_context, target), newest
        )

    def _look_at(self, group: "_Group", now: float) -> set[str]:
        """Return who gets rounds of a target, or was not asked yet whether it serves it."""
        answers = [
            (each, each.supports(group.target))
            for each in self._context.devices.values()
            if not each.loss_reason
        ]
        serving = [device for device, serves in answers if serves]
        unasked = {device.name for device, serves in answers if serves is None}
        group.meet(serving, now, _REMEMBERED_PERIODS * self._settings.period_secs)
        if len(serving) == 1 and group.knows_none_but(serving[0]):
            _admit_alone(group.standing(serving[0]), now, is_complete=not unasked)
        else:
            self._compare(group, serving, now)
        admitted = {each.name for each in serving if group.standing(each).is_admitted}
        return admitted | unasked

    def _compare(self, group: "_Group", serving: Sequence[Device], now: float) -> None:
        disagreeing = find_disagreements(group.secs, self._settings.tolerance)
        for device in serving:
            self._place_among(group, device, disagreeing.get(device.name), now)
        _admit_newcomers(group, serving, now)

    def _place_among(
        self, group: "_Group", device: Device, doubt: Disagreement | None, now: float
    ) -> None:
        """Let a device go on, or be calibrated first."""
        standing = group.standing(device)
        is_new = standing.secs is None
        is_doubtful = doubt is not None and not standing.disagreement and not standing.is_thorough
        period = self._settings.period_secs / (_TIMES_AS_OFTEN if standing.disagreement else 1.0)
        is_old = now - standing.calibrated >= period
        if (is_new or is_doubtful or is_old) and not standing.is_calibrating:
            standing.is_calibrating = True
            self._start(device, self._calibrate(group, device))
        standing.is_admitted = not (is_new or is_doubtful or standing.disagreement)

    async def _calibrate(self, group: "_Group", device: Device) -> None:
        """Time the kernel between two rounds, several times where it disagrees."""
        standing = group.standing(device)
        try:
            secs, n_timed = math.inf, _ATTEMPTS
            artifact = await group.kernel.artifact()
            if artifact is not None:
                for n_timed in range(1, _ATTEMPTS + 1):
                    await asyncio.sleep(_PAUSE_SECS if n_timed > 1 else 0.0)
                    async with device.exclusive(self._context.cpu_gate):
                        secs = min(secs, await group.kernel.time(artifact, device))
                    if self._doubt(group, device, secs) is None:
                        break
        finally:
            standing.is_calibrating = False
        standing.secs, standing.calibrated = secs, self._context.now()
        standing.is_thorough = n_timed == _ATTEMPTS
        self._conclude(group, device, self._doubt(group, device, secs))

    def _doubt(self, group: "_Group", device: Device, secs: float) -> Disagreement | None:
        """Compare what a device took with what the others did."""
        group.secs[device.name] = secs
        return find_disagreements(group.secs, self._settings.tolerance).get(device.name)

    def _conclude(self, group: "_Group", device: Device, doubt: Disagreement | None) -> None:
        standing = group.standing(device)
        self._store(group, device, standing.secs)
        if doubt is None:
            if standing.disagreement:
                _LOG.info("device %s agrees with the others again", device.name)
            standing.disagreement = ""
            self._context.record_writer.write(lambda session: _stand_well(session, standing))
            return
        if not standing.disagreement:
            _LOG.warning("device %s is kept apart: %s", device.name, doubt.reason)
            self._mark(group, device, doubt.ratio)
        standing.disagreement = doubt.reason

    def _store(self, group: "_Group", device: Device, secs: float | None) -> None:
        if secs is None or math.isinf(secs):
            return
        new = NewCalibration(
            full_name(device.name),
            host_of(device.name),
            group.target_id,
            group.kernel.name,
            secs,
        )
        self._context.record_writer.write(lambda session: calibrations.add(session, new))

    def _mark(self, group: "_Group", device: Device, ratio: float) -> None:
        """Mark what a device measured since it agreed with the others."""
        if math.isinf(ratio):
            return
        standing, job_ids = group.standing(device), self._context.task_states.job_ids
        self._context.record_writer.write(
            lambda session: drift.mark(
                session, job_ids, device.name, standing.record_id, round(ratio, 3)
            )
        )
        if ratio < 1.0:
            # Their best records may be others now; what is told is written before it is read.
            self._context.task_states.reload()


class _Group:
    """The devices that serve a target.

    Attributes:
        target_id: The target.
        target: The same, as devices are asked for it.
        kernel: That they are compared by.
        secs: What it took last on each that is there or was a while ago, seconds, by name.
    """

    def __init__(
        self, target_id: int, target: TargetInfo, kernel: CalibrationKernel, newest_record: int
    ) -> None:
        self.target_id = target_id
        self.target = target
        self.kernel = kernel
        self.secs: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._newest_record = newest_record

    def meet(self, serving: Sequence[Device], now: float, remembered_secs: float) -> None:
        """Note who is there, and forget who has been gone for long."""
        for device in serving:
            self._seen[device.name] = now
            if self.target.spec not in device.calibrations:
                device.calibrations[self.target.spec] = CalibrationState(now, self._newest_record)
        for name in [each for each in self.secs if now - self._seen[each] > remembered_secs]:
            del self.secs[name]

    def knows_none_but(self, device: Device) -> bool:
        """Whether no other device was calibrated lately."""
        return not self.secs.keys() - {device.name}

    def standing(self, device: Device) -> CalibrationState:
        """Return where a device stands that was met."""
        return device.calibrations[self.target.spec]


def _admit_alone(standing: CalibrationState, now: float, *, is_complete: bool) -> None:
    """Admit the only device, once the others said that they serve something else."""
    if is_complete or now - standing.first_seen >= _PATIENCE_SECS:
        standing.disagreement = ""
        standing.is_admitted = standing.was_admitted = True


def _admit_newcomers(group: _Group, serving: Sequence[Device], now: float) -> None:
    """Have those that get their first round wait until the others can be compared with them."""
    standings = [group.standing(device) for device in serving]
    n_new = sum(standing.secs is None for standing in standings)
    for standing in standings:
        if standing.is_admitted and not standing.was_admitted:
            is_late = now - standing.first_seen >= _PATIENCE_SECS
            standing.is_admitted = standing.was_admitted = not n_new or is_late


def _stand_well(session: Session, standing: CalibrationState) -> None:
    standing.record_id = measure_records.newest_id(session)
