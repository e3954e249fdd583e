"""Removal of files and rows that the service no longer needs.

Events are kept, so that a client can resume a stream at any of them.
"""

import asyncio
import logging
import time
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path

from records import builds, calibrations, devices, submissions, workers
from tuner.context import Context
from tuner.devices.cpu_gate import CpuGate
from tuner.jobs.submission import uploads_of
from tuner.service.archives import archives_of
from tuner.service.background import run_between_measurements
from tuner.tuning.storage_retry import FATAL_DB_ERRORS

_RETENTION_INTERVAL_SECS = 3600.0
# A younger file may belong to a request that is not stored yet.
_MIN_FILE_AGE_SECS = 24 * 3600.0
_MAX_SILENCE = timedelta(days=7)
_MAX_CALIBRATION_AGE = timedelta(days=30)

_LOG = logging.getLogger(__name__)


class RetentionTask:
    """The part of a service worker that removes unused files and rows, at once and every hour."""

    def __init__(self, context: Context, gate: CpuGate) -> None:
        self._context = context
        self._gate = gate

    async def run(self) -> None:
        """Remove unused files and rows until cancelled; a failure is logged and tried again.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        while True:
            try:
                await run_between_measurements(
                    self._gate, lambda: remove_unused(self._context), "retention"
                )
            except FATAL_DB_ERRORS:
                raise
            except Exception:
                _LOG.exception("unused files and rows cannot be removed")
            await asyncio.sleep(_RETENTION_INTERVAL_SECS)


def remove_unused(context: Context) -> None:
    """Remove files that no visible job or build names, and rows of workers that are gone."""
    data_dir = context.settings.data_dir
    # The names are read first: a file that is named afterwards is too young to be removed.
    with context.readers() as session:
        requests = submissions.visible_requests(session)
        archives = builds.visible_archives(session)
    uploads = {path.name for request in requests for path in uploads_of(request, data_dir)}
    _remove(data_dir / "uploads", "*.onnx", uploads)
    _remove(archives_of(data_dir), "*", archives)
    with context.sessions.begin() as session:
        workers.forget(session, _MAX_SILENCE)
        devices.forget(session, _MAX_SILENCE)
        calibrations.forget(session, _MAX_CALIBRATION_AGE)


def _remove(folder: Path, pattern: str, named: Collection[str]) -> None:
    limit = time.time() - _MIN_FILE_AGE_SECS
    for path in folder.glob(pattern):
        try:
            if path.name not in named and path.stat().st_mtime < limit:
                path.unlink()
                _LOG.info("removed %s/%s: nothing names it", folder.name, path.name)
        except OSError as error:
            _LOG.warning("cannot remove %s/%s: %s", folder.name, path.name, error.strerror)
