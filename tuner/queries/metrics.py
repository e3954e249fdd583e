"""Sums over all jobs, for monitoring."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, func, select, text
from sqlalchemy.orm import Session

from records.models import ERROR_KINDS, Job, JobFailure, JobState, MeasureRecord, Pick, now
from records.service.service_models import Build
from records.tuning import job_states
from tuner.queries.latencies import total_latencies

# Picks whose neighbours may not be committed yet.
_UNSETTLED_PICKS = 1000


@dataclass(frozen=True)
class JobLatency:
    """Estimated latency of the network of a job, seconds."""

    job_id: int
    state: JobState
    secs: float


@dataclass
class TrialCounter:
    """Counts the trials that jobs paid for, without reading old picks again.

    Picks that are done do not change: their sums up to the first open one are remembered.
    """

    _through: int = 0
    _measured: int = 0
    _failed: int = 0

    def count(self, session: Session) -> dict[str, int]:
        """Return the number of trials by outcome: ``ok``, and each kind of error."""
        newest = session.scalar(select(func.max(Pick.id))) or 0
        first_open = session.scalar(select(func.min(Pick.id)).where(~Pick.done))
        # Another process may yet commit a pick with a smaller number.
        through = min(newest - _UNSETTLED_PICKS, (first_open or newest) - 1)
        if through > self._through:
            measured, failed = _sums(session, self._through, through)
            self._through = through
            self._measured, self._failed = self._measured + measured, self._failed + failed
        measured, failed = _sums(session, self._through, newest)
        rows = session.execute(
            select(JobFailure.error_kind, func.sum(JobFailure.n_trials)).group_by(
                JobFailure.error_kind
            )
        )
        counts = dict.fromkeys(ERROR_KINDS, 0) | {kind: n_trials for kind, n_trials in rows}  # noqa: C416  rows are not pairs to mypy
        n_ok = self._measured + measured - self._failed - failed
        return {"ok": n_ok, **counts}


def _sums(session: Session, after: int, through: int) -> tuple[int, int]:
    """Return how many trials of a range of picks were measured, and how many of them failed."""
    measured, failed = session.execute(
        select(func.sum(Pick.n_measured), func.sum(Pick.n_failed)).where(
            Pick.id > after, Pick.id <= through
        )
    ).one()
    return measured or 0, failed or 0


def queue_ages(session: Session) -> dict[str, float]:
    """Return the time for which the oldest queued job and build wait, seconds; 0 without one."""
    is_queued = job_states.shown(session) == "queued"
    waiting = select(func.min(Job.updated)).where(is_queued, ~Job.hidden)
    builds = select(func.min(Build.updated)).where(Build.state == "queued")
    return {"jobs": _age(session, waiting), "builds": _age(session, builds)}


def _age(session: Session, stmt: Select[datetime]) -> float:
    since = session.scalar(stmt)
    return 0.0 if since is None else max((now() - since).total_seconds(), 0.0)


def last_trial(session: Session) -> datetime | None:
    """Return the time of the newest measure record; None without one."""
    stmt = select(MeasureRecord.created).order_by(MeasureRecord.id.desc()).limit(1)
    return session.scalar(stmt)


def database_bytes(session: Session) -> int:
    """Return the size of the database on its disk, without the write-ahead log."""
    if session.get_bind().dialect.name == "sqlite":
        pages = session.scalar(text("PRAGMA page_count")) or 0
        return int(pages) * int(session.scalar(text("PRAGMA page_size")) or 0)
    return int(session.scalar(text("SELECT pg_database_size(current_database())")) or 0)


def count_queued_builds(session: Session) -> int:
    """Count the builds that wait for a worker."""
    stmt = select(func.count()).select_from(Build).where(Build.state == "queued")
    return session.scalar(stmt) or 0


def recent_latencies(session: Session, limit: int) -> Iterator[JobLatency]:
    """Yield the latencies of the jobs that changed last; those without one are left out."""
    stmt = select(Job.id, job_states.shown(session)).where(~Job.hidden)
    rows = session.execute(stmt.order_by(Job.updated.desc()).limit(limit)).all()
    latencies = total_latencies(session, [job_id for job_id, _ in rows])
    for job_id, state in rows:
        if job_id in latencies:
            yield JobLatency(job_id, state, latencies[job_id])
