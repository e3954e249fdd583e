"""Sums over all jobs, for monitoring."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from records.models import ERROR_KINDS, Job, JobFailure, JobState, Pick
from records.service_models import Build
from tuner.queries.latencies import total_latencies


@dataclass(frozen=True)
class JobLatency:
    """Estimated latency of the network of a job, seconds."""

    job_id: int
    state: JobState
    secs: float


def count_trials(session: Session) -> dict[str, int]:
    """Count the trials that jobs paid for: ``ok``, and each kind of error."""
    measured, failed = session.execute(
        select(func.sum(Pick.n_measured), func.sum(Pick.n_failed))
    ).one()
    rows = session.execute(
        select(JobFailure.error_kind, func.sum(JobFailure.n_trials)).group_by(JobFailure.error_kind)
    )
    counts = dict.fromkeys(ERROR_KINDS, 0) | {kind: n_trials for kind, n_trials in rows}  # noqa: C416  rows are not pairs to mypy
    return {"ok": (measured or 0) - (failed or 0), **counts}


def count_queued_builds(session: Session) -> int:
    """Count the builds that wait for a worker."""
    stmt = select(func.count()).select_from(Build).where(Build.state == "queued")
    return session.scalar(stmt) or 0


def recent_latencies(session: Session, limit: int) -> Iterator[JobLatency]:
    """Yield the latencies of the jobs that changed last; those without one are left out."""
    stmt = select(Job.id, Job.state).where(~Job.hidden).order_by(Job.updated.desc()).limit(limit)
    jobs = session.execute(stmt).all()
    latencies = total_latencies(session, [job.id for job in jobs])
    for job_id, state in jobs:
        if job_id in latencies:
            yield JobLatency(job_id, state, latencies[job_id])
