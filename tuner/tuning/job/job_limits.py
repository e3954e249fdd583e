"""Limits of a job, which may change in the database while the job runs."""

from typing import NamedTuple

from records.jobs import JobStanding
from records.models import Job
from records.service import submissions
from scheduler.budget import Budget
from tuner.tuning.job.session_options import SessionOptions


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
