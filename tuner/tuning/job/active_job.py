"""Jobs that a coordinator tunes, their picks, and what devices do for them."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from records.models import Pick
from records.picks import NewPick
from scheduler.fairness import JobShare
from tuner.devices.device import Device
from tuner.tuning.context import TuningContext
from tuner.tuning.session import TuningSession
from tuner.tuning.writing.storage_retry import FATAL_DB_ERRORS

# Rounds, one after the other, that a full disk ended, each within this time after the one before.
_MAX_FULL_DISKS = 3
_FULL_DISK_SECS = 600.0


@dataclass(eq=False)
class ActiveJob:
    """A job that was admitted and has not ended.

    Attributes:
        virtual_secs: Device time that the job was charged, weighted by its priority; the fair
            queue serves the job with the least.
        n_rounds: Rounds of the job that are running or about to start.
        is_idle: True if the job had no pick when it was last asked, until one of its rounds ends.
        is_finishing: True while the winners of the job are being confirmed.
    """

    session: TuningSession
    virtual_secs: float
    n_rounds: int = 0
    is_idle: bool = False
    is_finishing: bool = False

    def __post_init__(self) -> None:
        # Plain attributes: they are read for every job whenever a round is assigned.
        self.job_id, self.target_id = self.session.job_id, self.session.target_id
        self.owner = self.session.owner
        self._n_full_disks = 0
        self._full_disk_at = -math.inf

    @property
    def accepts_rounds(self) -> bool:
        """True if the job may have a pick."""
        return not (self.is_idle or self.is_finishing)

    def is_stuck(self, started: float, now: float) -> bool:
        """Note that a full disk ended a round; returns whether waiting has not helped so far.

        Args:
            started: Start of the round; those that were under way at an earlier end count once.
            now: Time of its end, by the same clock.
        """
        if now - self._full_disk_at > _FULL_DISK_SECS:
            self._n_full_disks = 0
        if started >= self._full_disk_at:
            self._n_full_disks += 1
            self._full_disk_at = now
        return self._n_full_disks >= _MAX_FULL_DISKS

    @property
    def share(self) -> JobShare:
        """The job as the fair queue sees it."""
        priority = self.session.priority
        return JobShare(self.job_id, priority, self.virtual_secs, self.n_rounds, self.owner)


class RunningRound(NamedTuple):
    """Work of a device for a job.

    Attributes:
        pick: Pick of the round; None while the winners of the job are confirmed.
        started: Time of the start, by the clock of the event loop.
    """

    job: ActiveJob
    device: Device
    pick: Pick | None
    started: float


class PendingPick(NamedTuple):
    """A pick that was assigned to a device and is not stored yet."""

    job: ActiveJob
    device: Device
    new: NewPick


class PickBatch:
    """Picks of different jobs that share a transaction; used by one thread.

    A pick has to be stored before its round starts, because the trials of the round refer to its
    row; the record writer, which commits later, cannot take it. A transaction per pick would be
    the largest part of a coordinator's work where many devices serve many jobs, so the
    picks of one dispatch are collected here and stored at its end.

    The batch holds at most one pick per job, because what a job picks next depends on the pick
    before. Picks of other jobs need no row to see this one: it reserves its task in the task
    state cache from the moment it is chosen.
    """

    def __init__(self, context: TuningContext) -> None:
        self._context = context
        self._pending: dict[int, PendingPick] = {}

    def __contains__(self, job: ActiveJob) -> bool:
        return job.job_id in self._pending

    def add(self, pending: PendingPick) -> None:
        """Add the pick of a job that has none in the batch."""
        self._pending[pending.job.job_id] = pending

    def store(self) -> list[tuple[PendingPick, Pick | Exception]]:
        """Store all picks and empty the batch.

        Returns:
            Each pending pick with its row, or with the error by which the database refused it.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost; see
                :data:`FATAL_DB_ERRORS`.
        """
        pending, self._pending = list(self._pending.values()), {}
        return self._persist(pending) if pending else []

    def _persist(self, pending: list[PendingPick]) -> list[tuple[PendingPick, Pick | Exception]]:
        try:
            stored = self._context.store_picks([item.new for item in pending])
        except FATAL_DB_ERRORS:
            raise
        except Exception as error:
            if len(pending) == 1:
                return [(pending[0], error)]
            return [outcome for item in pending for outcome in self._persist([item])]
        return list(zip(pending, stored, strict=True))
