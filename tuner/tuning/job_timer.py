"""The seconds that a job has spent: those in which it did anything, each counted once."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from records import jobs
from tuner.tuning.context import TuningContext
from tuner.tuning.write_policy import WritePolicy


class JobTimer:
    """Runs while at least one thing of a job is under way.

    Args:
        context: Has the time, and a journal to write to.
        job_id: Whose time it is.
        spent_secs: Before.
    """

    def __init__(self, context: TuningContext, job_id: int, spent_secs: float) -> None:
        self._context = context
        self._job_id = job_id
        self._spent = spent_secs
        self._unsaved = self._since = 0.0
        self._n_busy = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Charge the job for the time inside."""
        if not self._n_busy:
            self._since = self._context.now()
        self._n_busy += 1
        try:
            yield
        finally:
            self._spend()
            self._n_busy -= 1

    @property
    def secs(self) -> float:
        """Seconds spent, up to now."""
        return self._spent + (self._context.now() - self._since if self._n_busy else 0.0)

    def take(self) -> float:
        """Return what was spent since it was stored or taken last; who takes it stores it."""
        if self._n_busy:
            self._spend()
        secs, self._unsaved = self._unsaved, 0.0
        return secs

    def save(self, session: Session) -> None:
        """Store what was spent since it was stored last."""
        secs, self._unsaved = self._unsaved, 0.0
        if secs:
            jobs.add_spent_secs(session, self._job_id, secs)

    def _spend(self) -> None:
        """Note what passed since the clock was last read."""
        now = self._context.now()
        secs, self._since = now - self._since, now
        self._spent += secs
        self._unsaved += secs
        if self._context.record_writer.policy is WritePolicy.IMMEDIATE:
            self._context.record_writer.write(self.save, self._job_id)
