"""Jobs: what was asked for, how far it may go, and how far it came."""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import Job, JobState
from records.statements import find_or_insert


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A request to tune a network for a target; a budget of None is no limit."""

    network_id: int
    target_id: int
    objective: str
    seed: int
    budget_trials: int | None = None
    budget_secs: float | None = None
    priority: int = 0
    settings: dict[str, Any] = field(default_factory=dict)


def open_job(session: Session, new: NewJob) -> Job:
    """Return the job of a network, target, objective and seed, creating it if it is new.

    A job that exists keeps its settings and priority. A budget that is given is
    raised to the larger of the two, or set where there was no limit; a budget of
    None changes nothing.
    """
    key = {
        "network_id": new.network_id,
        "target_id": new.target_id,
        "objective": new.objective,
        "seed": new.seed,
    }
    values = {
        "budget_trials": new.budget_trials,
        "budget_secs": new.budget_secs,
        "priority": new.priority,
        "settings": new.settings,
    }
    job = _locked(session, find_or_insert(session, Job, key, values).id)
    if new.budget_trials is not None:
        job.budget_trials = max(job.budget_trials or 0, new.budget_trials)
    if new.budget_secs is not None:
        job.budget_secs = max(job.budget_secs or 0.0, new.budget_secs)
    session.flush()
    return job


def set_state(session: Session, job_id: int, state: JobState, message: str | None = None) -> Job:
    """Set the state of a job, and replace its message.

    Raises:
        NoSuchRow: If there is no such job.
    """
    job = _locked(session, job_id)
    job.state, job.message = state, message
    session.flush()
    return job


def add_spent_secs(session: Session, job_id: int, secs: float) -> Job:
    """Add wall-clock seconds to what a job has spent.

    Raises:
        NoSuchRow: If there is no such job.
    """
    job = _locked(session, job_id)
    job.spent_secs += secs
    session.flush()
    return job


def latest_job(session: Session) -> Job | None:
    """Return the job that changed last, or None if there is none."""
    return session.scalars(select(Job).order_by(Job.updated.desc(), Job.id.desc()).limit(1)).first()


def list_jobs(session: Session, state: JobState | None = None) -> list[Job]:
    """Return all jobs, or those in one state, the newest first."""
    wanted = select(Job).order_by(Job.id.desc())
    if state is not None:
        wanted = wanted.where(Job.state == state)
    return list(session.scalars(wanted))


def _locked(session: Session, job_id: int) -> Job:
    # FOR NO KEY UPDATE: rows that refer to the job may still be inserted meanwhile.
    job = session.get(Job, job_id, with_for_update={"key_share": True})
    if job is None:
        raise NoSuchRow(f"no job {job_id}")
    return job
