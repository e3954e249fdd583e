"""Tells those who watch a job what goes on in it, in the database and in this process."""

from dataclasses import asdict
from typing import NamedTuple

from records import events
from scheduler.outlook import Outlook
from tuner.tuning.context import TuningContext
from tuner.tuning.status import StatusCallback, TuningStatus

# Where many measure, what a job does is told so often.
_TELL_SECS = 0.5


class StatusUpdate(NamedTuple):
    """What there is to tell.

    Attributes:
        status: Of the job.
        gains: What a round on each task is worth, by task id; None: as it was.
    """

    status: TuningStatus
    gains: dict[str, float] | None


class StatusPublisher:
    """Tells of one job, every step where one device measures, or now and then where many do."""

    def __init__(self, context: TuningContext, job_id: int, on_status: StatusCallback) -> None:
        self._context = context
        self._job_id = job_id
        self._on_status = on_status
        self._told = 0.0
        self.phase = ""

    @property
    def is_due(self) -> bool:
        """Whether it is time to tell."""
        context = self._context
        since = context.now() - self._told
        return not context.has_multiple_devices or (context.may_tell and since >= _TELL_SECS)

    def publish(self, news: StatusUpdate) -> None:
        """Store what goes on, and tell the watcher."""
        started = self._told = self._context.now()
        self.phase = news.status.phase
        self._store(news)
        self._on_status(news.status)
        self._context.have_told(started)

    def _store(self, news: StatusUpdate) -> None:
        status, outlook = news.status, news.status.outlook
        with self._context.sessions.begin() as session:
            events.set_status(
                session,
                self._job_id,
                phase=status.phase,
                task_id=status.current,
                gains=news.gains,
                total_secs=status.snapshot.total_secs,
                spent_trials=status.spent_trials,
                outlook=_as_json(outlook),
            )


def _as_json(outlook: Outlook | None) -> dict[str, float] | None:
    return None if outlook is None else asdict(outlook)
