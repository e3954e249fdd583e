"""Measurement of the seconds that a job spends."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from records import jobs
from tuner.tuning.context import TuningContext
from tuner.tuning.writing.write_policy import WritePolicy


class JobTimer:
    """Adds up the time in which any work of a job is running, each second counted once.

    Args:
        context: Source of the time, and of the record writer.
        job_id: Id of the job.
        spent_secs: Seconds that the job spent in earlier runs.
    """

    def __init__(self, context: TuningContext, job_id: int, spent_secs: float) -> None:
        self._context = context
        self._job_id = job_id
        self._spent = spent_secs
        self._unsaved = self._unsettled = self._since = 0.0
        self._n_running = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Charge the job for the time inside; may be entered several times at once."""
        if not self._n_running:
            self._since = self._context.now()
        self._n_running += 1
        try:
            yield
        finally:
            self._add_elapsed()
            self._n_running -= 1

    def charge(self, secs: float) -> None:
        """Charge the job for seconds before its work, which are stored after :meth:`settle`."""
        self._spent += secs
        self._unsettled += secs

    def settle(self) -> None:
        """Have the seconds before the work stored, because it has a result."""
        self._unsaved += self._unsettled
        self._unsettled = 0.0

    @property
    def secs(self) -> float:
        """Seconds that the job has spent until now."""
        return self._spent + (self._context.now() - self._since if self._n_running else 0.0)

    def take(self) -> float:
        """Return the seconds that are not stored yet; the caller stores them."""
        if self._n_running:
            self._add_elapsed()
        secs, self._unsaved = self._unsaved, 0.0
        return secs

    def save(self, session: Session) -> None:
        """Store the seconds that are not stored yet."""
        secs, self._unsaved = self._unsaved, 0.0
        if secs:
            jobs.add_spent_secs(session, self._job_id, secs)

    def _add_elapsed(self) -> None:
        now = self._context.now()
        secs, self._since = now - self._since, now
        self._spent += secs
        self._unsaved += secs
        if self._context.record_writer.policy is WritePolicy.IMMEDIATE:
            self._context.record_writer.write(self.save, self._job_id)
