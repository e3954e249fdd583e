"""Picks that are chosen one by one and stored together, before their rounds start."""

from typing import NamedTuple

from records.models import Pick
from records.picks import NewPick
from tuner.devices.device import Device
from tuner.tuning.context import TuningContext
from tuner.tuning.job.active_job import ActiveJob
from tuner.tuning.writing.storage_retry import FATAL_DB_ERRORS


class PendingPick(NamedTuple):
    """A pick that was assigned to a device and is not stored yet."""

    job: ActiveJob
    device: Device
    new: NewPick


class PickBatch:
    """Picks of different jobs that share a transaction; used by one thread.

    A pick has to be stored before its round starts, because the trials of the round refer to its
    row; the record writer, which commits later, cannot take it. A transaction per pick would be
    the largest part of a coordinator's work where many devices serve many jobs (decisions 0020
    and 0021), so the picks of one dispatch are collected here and stored at its end.

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
            return self._persist_one_by_one(pending)
        return list(zip(pending, stored, strict=True))

    def _persist_one_by_one(
        self, pending: list[PendingPick]
    ) -> list[tuple[PendingPick, Pick | Exception]]:
        """Store each pick in a transaction of its own, so that only refused ones fail."""
        return [outcome for item in pending for outcome in self._persist([item])]
