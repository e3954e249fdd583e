"""Publication of a job's status: to its row in the database, and to a callback."""

from dataclasses import asdict
from typing import NamedTuple

from records.tuning import events
from tuner.tuning.context import TuningContext
from tuner.tuning.status import StatusCallback, TuningStatus


class StatusUpdate(NamedTuple):
    """One status of a job, as it is published.

    Attributes:
        gains: Estimated gain of a round on each task, by task id; None leaves the stored gains.
    """

    status: TuningStatus
    gains: dict[str, float] | None


class StatusPublisher:
    """Publishes the status of one job, as often as the context's throttle allows.

    Attributes:
        phase: Phase that was published last; empty before the first.
    """

    def __init__(self, context: TuningContext, job_id: int, on_status: StatusCallback) -> None:
        self._context = context
        self._job_id = job_id
        self._on_status = on_status
        self._published = 0.0
        self.phase = ""

    @property
    def is_due(self) -> bool:
        """True if the status may be published now."""
        return self._context.progress_throttle.allows(self._published)

    def publish(self, update: StatusUpdate) -> None:
        """Store a status and pass it to the callback."""
        self._published = self._context.now()
        self.phase = update.status.phase
        with self._context.progress_throttle.charging():
            status, outlook = update.status, update.status.outlook
            with self._context.sessions.begin() as session:
                events.set_status(
                    session,
                    self._job_id,
                    phase=status.phase,
                    task_id=status.current,
                    gains=update.gains,
                    spent_trials=status.spent_trials,
                    outlook=None if outlook is None else asdict(outlook),
                )
            self._on_status(update.status)
