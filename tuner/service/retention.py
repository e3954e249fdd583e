"""What a service leaves behind: files that nobody can ask for any more, workers long gone.

Events stay: whoever resumes a stream at any of them finds all that came after.
"""

import logging
import time
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path

from records import builds, calibrations, devices, submissions, workers
from tuner.context import Context
from tuner.jobs.submission import uploads_of
from tuner.service.archives import archives_of

_EVERY_SECS = 3600.0
# A file younger than this may be of a request that is not stored yet.
_LEFT_SECS = 24 * 3600.0
_GONE = timedelta(days=7)
_OLD = timedelta(days=30)

_LOG = logging.getLogger(__name__)


class RetentionTask:
    """Tidies up at once, and then every hour in which somebody asks it to."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._due = time.monotonic()

    def tend(self) -> None:
        """Tidy up if it is time to.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _EVERY_SECS
            tidy_up(self._context)


def tidy_up(context: Context) -> None:
    """Remove what no job or build that can be seen names, and who was silent for a week."""
    data_dir = context.settings.data_dir
    # The names first: a file that is named after this is younger than what is removed.
    with context.readers() as session:
        requests = submissions.visible_requests(session)
        archives = builds.visible_archives(session)
    uploads = {path.name for request in requests for path in uploads_of(request, data_dir)}
    _remove(data_dir / "uploads", "*.onnx", uploads)
    _remove(archives_of(data_dir), "*", archives)
    with context.sessions.begin() as session:
        workers.forget(session, _GONE)
        devices.forget(session, _GONE)
        calibrations.forget(session, _OLD)


def _remove(folder: Path, pattern: str, named: Collection[str]) -> None:
    limit = time.time() - _LEFT_SECS
    for path in folder.glob(pattern):
        try:
            if path.name not in named and path.stat().st_mtime < limit:
                path.unlink()
                _LOG.info("removed %s/%s: nothing names it", folder.name, path.name)
        except OSError as error:
            _LOG.warning("cannot remove %s/%s: %s", folder.name, path.name, error.strerror)
