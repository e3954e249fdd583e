"""Limits of a job, which may change in the database while it runs, and its spent seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sqlalchemy.orm import Session

from records import jobs
from records.jobs import JobStanding
from records.models import Job
from records.service import submissions
from scheduler.budget import Budget
from tuner.tuning.context import TuningContext
from tuner.tuning.job.session_options import SessionOptions
from tuner.tuning.writing.record_writer import WritePolicy


class RequestedLimits(NamedTuple):
    """Limits in the row of a job; None for unlimited."""

    trials: int | None
    secs: float | None
    stop_below_secs: float | None


class JobLimits:
    """Budget, priority and stopping threshold of one job.

    A job starts with the limits of its options. A limit that changes in its row later replaces
    the one in force; the others stay as they are.

    Args:
        options: Options of this run.
        job: Row of the job.

    Attributes:
        budget: Trials and seconds that the job may spend.
        stop_below_secs: Gain of the objective, in seconds, below which the job stops when another
            minute is forecast to bring less; None never stops it.
        priority: Priority, by which jobs share the devices.
    """

    def __init__(self, options: SessionOptions, job: Job) -> None:
        self.priority = job.priority
        self.budget = options.budget
        if options.submission:
            # The row is the request, which may have grown since the options were read.
            self.budget = Budget(job.budget_trials, job.budget_secs)
        self.stop_below_secs = options.spec.stop_below_secs
        self._requested = requested_limits(job)

    def update(self, job: JobStanding) -> None:
        """Adopt the priority of a row, and the limits that changed since the last one."""
        self.priority = job.priority
        before, now = self._requested, requested_limits(job)
        if now == before:
            return
        self._requested = now
        self.budget = Budget(
            self.budget.trials if now.trials == before.trials else now.trials,
            self.budget.secs if now.secs == before.secs else now.secs,
        )
        if now.stop_below_secs != before.stop_below_secs:
            self.stop_below_secs = now.stop_below_secs

    @property
    def requested(self) -> RequestedLimits:
        """Limits of the row that was read last."""
        return self._requested


def requested_limits(job: Job | JobStanding) -> RequestedLimits:
    """Return the limits that a row requests."""
    stop_below_secs = submissions.stop_below_secs(job.request)
    return RequestedLimits(job.budget_trials, job.budget_secs, stop_below_secs)


class JobTimer:
    """Adds up the time in which any work of a job is running, each second counted once.

    Args:
        context: Source of the time, and of the record writer.
        spent_secs: Seconds that the job spent in earlier runs.
    """

    def __init__(self, context: TuningContext, job_id: int, spent_secs: float) -> None:
        self._context = context
        self._job_id = job_id
        self._spent = spent_secs
        self._unsaved = self._unsettled = self._since = 0.0
        self._is_settled = False
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
        """Charge the job for seconds, which are stored after :meth:`settle`."""
        self._spent += secs
        if self._is_settled:
            self._unsaved += secs
        else:
            self._unsettled += secs

    def settle(self) -> None:
        """Have the seconds of this run stored, because it has a result."""
        self._unsaved += self._unsettled
        self._unsettled, self._is_settled = 0.0, True

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
        self.charge(secs)
        if self._context.record_writer.policy is WritePolicy.IMMEDIATE:
            self._context.record_writer.write(self.save, self._job_id)
