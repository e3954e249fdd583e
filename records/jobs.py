"""Jobs: what was asked for, how far it may go, and how far it came."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Double, and_, cast, func, select
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import Job, JobState, NetworkTask, Task
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

    A job that exists keeps its priority, and settings that are not given anew. A budget
    that is given is raised to the larger of the two, or set where there was no limit; a
    budget of None changes nothing.
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
    job_id = find_or_insert(session, Job, key, values).id
    job = raise_budget(session, job_id, trials=new.budget_trials, secs=new.budget_secs)
    job.settings = {**job.settings, **new.settings}
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


def get_job(session: Session, job_id: int) -> Job:
    """Return a job.

    Raises:
        NoSuchRow: If there is no such job.
    """
    job = session.get(Job, job_id)
    if job is None:
        raise NoSuchRow(f"no job {job_id}")
    return job


def set_virtual_secs(session: Session, job_id: int, secs: float) -> Job:
    """Set the virtual time of a job, by which devices are shared.

    Raises:
        NoSuchRow: If there is no such job.
    """
    job = _locked(session, job_id)
    job.virtual_secs = secs
    session.flush()
    return job


def set_priority(session: Session, job_id: int, priority: int) -> Job:
    """Set the priority of a job.

    Raises:
        NoSuchRow: If there is no such job.
    """
    job = _locked(session, job_id)
    job.priority = priority
    session.flush()
    return job


def raise_budget(
    session: Session, job_id: int, *, trials: int | None = None, secs: float | None = None
) -> Job:
    """Give a job a larger budget; a limit that is not given, or smaller, changes nothing.

    Raises:
        NoSuchRow: If there is no such job.
    """
    job = _locked(session, job_id)
    if trials is not None:
        job.budget_trials = max(job.budget_trials or 0, trials)
    if secs is not None:
        job.budget_secs = max(job.budget_secs or 0.0, secs)
    session.flush()
    return job


def record_reached_trials(session: Session, job_id: int, n_trials: int) -> Job:
    """Note how many trials counted as spent when a job was done; the most ever stays.

    Raises:
        NoSuchRow: If there is no such job.
    """
    job = _locked(session, job_id)
    job.reached_trials = max(job.reached_trials or 0, n_trials)
    session.flush()
    return job


def tuned_depths(session: Session, task_ids: Sequence[int]) -> dict[int, float]:
    """Return how deep jobs that are done have tuned each task: trials a task of their network.

    The largest over the jobs whose network contains the task; a task of none is left out.
    """
    sizes = (
        select(NetworkTask.network_id, Task.target_id, func.count().label("n_tasks"))
        .join(Task, Task.id == NetworkTask.task_id)
        .group_by(NetworkTask.network_id, Task.target_id)
        .subquery()
    )
    depth = func.max(cast(Job.reached_trials, Double) / sizes.c.n_tasks)
    found = (
        select(NetworkTask.task_id, depth)
        .join(Task, Task.id == NetworkTask.task_id)
        .join(
            Job,
            and_(Job.network_id == NetworkTask.network_id, Job.target_id == Task.target_id),
        )
        .join(
            sizes,
            and_(sizes.c.network_id == Job.network_id, sizes.c.target_id == Job.target_id),
        )
        .where(NetworkTask.task_id.in_(task_ids), Job.reached_trials.is_not(None))
        .group_by(NetworkTask.task_id)
    )
    return {task_id: float(trials) for task_id, trials in session.execute(found)}


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
