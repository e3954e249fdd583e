"""Removal of files and rows that the service no longer needs, within the limits of its settings."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from sqlalchemy.orm import Session

from records.models import now
from records.service import devices, workers
from records.storage import purge
from records.tuning import calibrations
from tuner.build_cache import gc
from tuner.build_cache.opening import open_local
from tuner.context import Context
from tuner.devices.cpu_gate import CpuGate
from tuner.service.background import run_between_measurements
from tuner.service.job_files import remove_files
from tuner.tuning.writing.storage_retry import FATAL_DB_ERRORS
from tuner.workers.confinement.log_rotation import rotate

_RETENTION_INTERVAL_SECS = 3600.0
_LOG_INTERVAL_SECS = 60.0
_MAX_SILENCE = timedelta(days=7)
_MAX_CALIBRATION_AGE = timedelta(days=30)

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")
# Work of one transaction; returns the number of rows that it removed.
Step = Callable[[Session], int]


class RetentionTask:
    """The part of a service worker that removes unused files and rows, at once and every hour.

    Every step is short and runs between measurements. Logs are rotated every minute.
    """

    def __init__(self, context: Context, gate: CpuGate) -> None:
        self._context = context
        self._gate = gate

    async def run(self) -> None:
        """Remove unused files and rows until cancelled; a failure is logged and tried again.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _RETENTION_INTERVAL_SECS
            for work in (remove_files, collect_cache, forget_silent):
                await self._try(work)
            for step in await self._try(list_purges) or ():
                while await self._try(partial(do, step)):
                    pass
            while loop.time() < due:
                await self._try(rotate_logs)
                await asyncio.sleep(min(_LOG_INTERVAL_SECS, max(due - loop.time(), 0.0)))

    async def _try(self, work: Callable[[Context], Result]) -> Result | None:
        """Do one piece of work between measurements; None if it fails."""
        try:
            return await run_between_measurements(
                self._gate, lambda: work(self._context), "retention"
            )
        except FATAL_DB_ERRORS:
            raise
        except Exception:
            _LOG.exception("unused files and rows cannot be removed")
        return None


def list_purges(context: Context) -> list[Step]:
    """Return the steps that remove old rows; each is repeated until it removes none."""
    retention, at = context.settings.retention, now()

    def limit(secs: float | None) -> datetime:
        # Nothing is older than the oldest time.
        oldest = datetime.min.replace(tzinfo=UTC)
        return oldest if secs is None else max(at - timedelta(seconds=secs), oldest)

    deleted, events = limit(retention.keep_deleted_rows), limit(retention.keep_events)
    features, entries = limit(retention.keep_features), limit(retention.keep_audit)
    with context.readers() as session:
        of_deleted = purge.deleted_jobs(session, deleted)
        with_events = purge.jobs_with_old_events(session, events)
    steps: list[Step] = [
        partial(purge.purge_job, job_id=job_id, before=deleted) for job_id in of_deleted
    ]
    steps += [partial(purge.remove_events, job_id=job_id, before=events) for job_id in with_events]
    steps.append(partial(purge.remove_features, before=features))
    steps.append(partial(purge.remove_audit, before=entries))
    return steps


def do(step: Step, context: Context) -> int:
    """Do one step in a transaction of its own."""
    with context.sessions.begin() as session:
        return step(session)


def collect_cache(context: Context) -> None:
    """Remove entries of the build cache beyond its limits, as ``tuner cache gc`` does."""
    settings = context.settings
    collected = gc.collect(
        open_local(settings).local,
        max_bytes=settings.retention.cache_max_size,
        unused_for_secs=settings.retention.cache_max_age,
    )
    if collected.n_entries or collected.n_strays:
        _LOG.info(
            "removed %d entries of the build cache and %d files of killed processes",
            collected.n_entries,
            collected.n_strays,
        )


def forget_silent(context: Context) -> None:
    """Remove rows of workers and devices that are gone, and old calibrations."""
    with context.sessions.begin() as session:
        workers.forget(session, _MAX_SILENCE)
        devices.forget(session, _MAX_SILENCE)
        calibrations.forget(session, _MAX_CALIBRATION_AGE)


def rotate_logs(context: Context) -> None:
    """Rotate the logs of worker processes that are too long."""
    for log in (context.settings.data_dir / "logs").glob("*.log"):
        rotate(log, context.settings.retention.log_max_size)
