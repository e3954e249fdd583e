"""Progress of a running job, in this process or on a service, and its estimated end."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from scheduler import estimate
from scheduler.budget import Budget
from tuner.formatting import clock, milliseconds, saving
from tuner.queries.tasks import view_snapshot
from tuner.schemas import JobSummary, JobView, OutlookView, TaskView
from tuner.tuning.status import TuningStatus


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """A running job at one moment.

    Attributes:
        phase: Current activity.
        tasks: Rows of the task scheduler table.
        total_latency_secs: Estimated latency of the network, seconds; None while unknown.
        spent_trials: Trials that count against the budget.
        budget_trials: Limit of trials.
        eta_secs: Time until the job ends, seconds; None while unknown.
        outlook: Forecast for the next minute.
    """

    phase: str
    tasks: Sequence[TaskView]
    total_latency_secs: float | None
    spent_trials: int
    budget_trials: int | None
    spent_secs: float
    eta_secs: float | None
    outlook: OutlookView | None


def progress_of_status(status: TuningStatus) -> JobProgress:
    """Return the progress of a session in this process."""
    total, outlook = status.snapshot.total_latency_secs, status.outlook
    eta = _eta_secs(status.budget, status.spent_trials, status.spent_secs)
    if status.trials_to_stop is not None and status.spent_trials and status.spent_secs:
        until_stop = status.trials_to_stop * status.spent_secs / status.spent_trials
        eta = until_stop if eta is None else min(eta, until_stop)
    return JobProgress(
        phase=status.phase,
        tasks=view_snapshot(status.snapshot, status.current),
        total_latency_secs=total if math.isfinite(total) else None,
        spent_trials=status.spent_trials,
        budget_trials=status.budget.trials,
        spent_secs=status.spent_secs,
        eta_secs=eta,
        outlook=None if outlook is None else OutlookView(**asdict(outlook)),
    )


def progress_of_job(view: JobView) -> JobProgress:
    """Return the progress of a job of a service."""
    job = view.job
    return JobProgress(
        phase=f"job {job.id} {job.state}" + (f": {job.phase}" if job.phase else ""),
        tasks=view.tasks,
        total_latency_secs=job.total_latency_secs,
        spent_trials=job.spent_trials,
        budget_trials=job.budget_trials,
        spent_secs=job.spent_secs,
        eta_secs=eta_secs(job),
        outlook=view.outlook,
    )


def eta_secs(job: JobSummary) -> float | None:
    """Estimate when a job ends at its pace so far, in seconds from now; None if unknown."""
    if not job.budget_trials and not job.budget_secs:
        return None
    budget = Budget(job.budget_trials or None, job.budget_secs)
    return _eta_secs(budget, job.spent_trials, job.spent_secs)


def summary(progress: JobProgress) -> str:
    """Return the state of a job in one line."""
    limit = f"/{progress.budget_trials}" if progress.budget_trials else ""
    parts = [
        f"Total latency {milliseconds(progress.total_latency_secs)} ms",
        f"trials {progress.spent_trials}{limit}",
        f"elapsed {clock(progress.spent_secs)}",
        f"ETA {clock(progress.eta_secs)}",
    ]
    if progress.outlook is not None:
        parts.append(f"next minute saves {saving(progress.outlook)}")
    running = [task.task_id for task in progress.tasks if task.running]
    if running:
        parts.append(f"now task {running[0]}")
    return "  ".join(parts)


def _eta_secs(budget: Budget, spent_trials: int, spent_secs: float) -> float | None:
    eta = estimate.eta_secs(budget, spent_trials=spent_trials, spent_secs=spent_secs)
    return eta if math.isfinite(eta) else None
