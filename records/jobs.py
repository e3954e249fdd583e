"""Jobs: requests to tune a network, their budgets, states and progress."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import Job, JobState, NetworkTask, Task
from records.service import webhooks
from records.service.owners import access
from records.storage.text import storable
from records.storage.upsert import find_or_insert, table
from records.tuning import events, job_states


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A request to tune a network for a target; a budget of None is unlimited."""

    network_id: int
    target_id: int
    objective: str
    seed: int
    budget_trials: int | None = None
    budget_secs: float | None = None
    priority: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    submission: str = ""


class JobStanding(NamedTuple):
    """The part of a job that a coordinator polls; a budget of None is unlimited."""

    job_id: int
    state: JobState
    budget_trials: int | None
    budget_secs: float | None
    spent_secs: float
    priority: int
    virtual_secs: float
    request: dict[str, Any] | None


def open_job(session: Session, new: NewJob) -> Job:
    """Return the job of a network, target, objective and seed, creating it if it is new.

    Jobs of the service are also distinguished by ``submission``, see
    :mod:`records.service.submissions`.

    An existing job keeps its priority, and the settings that the request does not contain. The
    budget of the command line is that of its last run. A job of the service has the larger of the
    two, or the one that there is; None changes nothing. A deleted job of the command line becomes
    visible again; one of the service does not, because it may have been deleted while its model was
    loaded.
    """
    key = {
        "network_id": new.network_id,
        "target_id": new.target_id,
        "objective": new.objective,
        "seed": new.seed,
        "submission": new.submission,
    }
    values = {
        "budget_trials": new.budget_trials,
        "budget_secs": new.budget_secs,
        "priority": new.priority,
        "settings": new.settings,
    }
    job = locked(session, find_or_insert(session, Job, key, values).id)
    if not new.submission:
        job.budget_trials, job.budget_secs = new.budget_trials, new.budget_secs
    else:
        if new.budget_trials is not None:
            job.budget_trials = max(job.budget_trials or 0, new.budget_trials)
        if new.budget_secs is not None:
            job.budget_secs = max(job.budget_secs or 0.0, new.budget_secs)
    job.settings = {**job.settings, **new.settings}
    job.hidden = job.hidden and new.submission != ""
    session.flush()
    return job


def set_state(
    session: Session,
    job_id: int,
    state: JobState,
    message: str | None = None,
    *,
    only_from: Container[JobState] | None = None,
) -> bool:
    """Set the state of a job and replace its message; an end is reported to its webhooks.

    Args:
        message: Explanation for people.
        only_from: States from which the change is allowed; in any other state, which another
            process may have set in between, nothing happens. None allows every state.

    Returns:
        True if the state was set.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    job = locked(session, job_id)
    if only_from is not None and job.state not in only_from:
        return False
    message = None if message is None else storable(message)
    if (job.state, job.message) != (state, message):
        job.state, job.message = state, message
        session.flush()
        events.add_event(session, job_id, "state", {"state": state, "message": message})
        webhooks.schedule(session, job_id, state)
    return True


def add_spent_secs(session: Session, job_id: int, secs: float) -> Job:
    """Add wall-clock seconds to the time that a job has spent.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    job = locked(session, job_id)
    job.spent_secs += secs
    session.flush()
    return job


def add_all_spent_secs(session: Session, secs: Iterable[tuple[int, float]]) -> None:
    """Add seconds to the time that jobs have spent, by id; unknown ids are ignored."""
    # Jobs are updated in the order of their ids, so that two writers never deadlock.
    rows = [{"of_job": job_id, "more": more} for job_id, more in sorted(secs) if more]
    if rows:
        session.execute(_ADD_SPENT_SECS, rows)


def get_job(session: Session, job_id: int) -> Job:
    """Return a job.

    Raises:
        NoSuchRow: If the job does not exist or was deleted.
    """
    job = session.get(Job, job_id)
    if job is None or job.hidden:
        raise NoSuchRow(f"no job {job_id}")
    return job


def is_running(session: Session, job_id: int) -> bool:
    """Return whether a job exists and runs."""
    return session.scalar(select(Job.state).where(Job.id == job_id, ~Job.hidden)) == "running"


def standings(session: Session, job_ids: Sequence[int]) -> dict[int, JobStanding]:
    """Return the present standing of each job that exists, by id."""
    rows = session.execute(_STANDINGS, {"job_ids": job_ids})
    return {row[0]: JobStanding(*row) for row in rows}


def set_virtual_secs(session: Session, job_id: int, secs: float) -> Job:
    """Set the virtual time of a job, by which devices are shared.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    job = locked(session, job_id)
    job.virtual_secs = secs
    session.flush()
    return job


def set_all_virtual_secs(session: Session, secs: Mapping[int, float]) -> None:
    """Set the virtual times of many jobs, by id; unknown ids are ignored."""
    # Jobs are updated in the order of their ids, so that two writers never deadlock.
    rows = [{"of_job": job_id, "secs": secs[job_id]} for job_id in sorted(secs)]
    if rows:
        session.execute(_SET_VIRTUAL_SECS, rows)


def set_priority(session: Session, job_id: int, priority: int) -> Job:
    """Set the priority of a job.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    job = locked(session, job_id)
    job.priority = priority
    session.flush()
    events.add_event(session, job_id, "priority", {"priority": priority})
    return job


def raise_budget(
    session: Session, job_id: int, *, trials: int | None = None, secs: float | None = None
) -> Job:
    """Raise the limits of a job; an absent limit stays absent, and no limit decreases.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    job = locked(session, job_id)
    if trials is not None and job.budget_trials is not None:
        job.budget_trials = max(job.budget_trials, trials)
    if secs is not None and job.budget_secs is not None:
        job.budget_secs = max(job.budget_secs, secs)
    session.flush()
    add_budget_event(session, job)
    return job


def add_budget_event(session: Session, job: Job) -> None:
    """Append an event with the present limits of a job."""
    limits = {"trials": job.budget_trials, "seconds": job.budget_secs}
    events.add_event(session, job.id, "budget", limits)


def record_reached_trials(session: Session, job_id: int, n_trials: int) -> Job:
    """Store the number of trials counted as spent when a job was done, unless it had more before.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    job = locked(session, job_id)
    job.reached_trials = max(job.reached_trials or 0, n_trials)
    session.flush()
    return job


def equivalent_jobs(session: Session, job: Job, task_ids: Sequence[int]) -> list[Job]:
    """Return the other jobs with exactly these tasks and the same goal; their trials count equally.

    A job with more tasks is not equivalent, because it spends trials where its own network gains.

    Args:
        job: Job whose objective and goal must match.
        task_ids: All tasks of its network.
    """
    others = session.scalars(
        select(Job).where(
            Job.id != job.id,
            Job.target_id == job.target_id,
            Job.objective == job.objective,
            Job.network_id.in_(
                select(NetworkTask.network_id).where(NetworkTask.task_id.in_(task_ids))
            ),
        )
    )
    own_tasks, goal = sorted(task_ids), job.settings.get("goal")
    return [
        other
        for other in others
        if other.settings.get("goal") == goal and _task_ids(session, other) == own_tasks
    ]


def _task_ids(session: Session, job: Job) -> list[int]:
    stmt = (
        select(NetworkTask.task_id)
        .join(Task, Task.id == NetworkTask.task_id)
        .where(NetworkTask.network_id == job.network_id, Task.target_id == job.target_id)
        .order_by(NetworkTask.task_id)
    )
    return list(session.scalars(stmt))


def find_job(session: Session, job_id: int | None = None) -> Job | None:
    """Return a job that is not hidden, by default the one that was updated last, or None."""
    stmt = select(Job).where(~Job.hidden).order_by(Job.updated.desc(), Job.id.desc()).limit(1)
    return session.scalars(stmt if job_id is None else stmt.where(Job.id == job_id)).first()


def count_by_state(session: Session, viewer: access.Viewer = access.EVERYTHING) -> dict[str, int]:
    """Count the jobs that a viewer may see by the state in which they are shown, if any."""
    stmt = select(job_states.shown(session).label("state"))
    jobs = stmt.where(~Job.hidden, access.visible_jobs(viewer)).subquery()
    rows = session.execute(select(jobs.c.state, func.count()).group_by(jobs.c.state))
    return {state: n for state, n in rows}  # noqa: C416  rows are not pairs to mypy


def locked(session: Session, job_id: int) -> Job:
    """Return a job locked against other writers until the transaction ends.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    # FOR NO KEY UPDATE lets others insert rows that refer to the job.
    job = session.get(Job, job_id, with_for_update={"key_share": True})
    if job is None:
        raise NoSuchRow(f"no job {job_id}")
    return job


_JOB = table(Job).c
_STANDINGS = select(
    _JOB.id, *[_JOB[name] for name in JobStanding._fields if name != "job_id"]
).where(_JOB.id.in_(bindparam("job_ids", expanding=True)))
_SET_VIRTUAL_SECS = (
    update(table(Job))
    .where(table(Job).c.id == bindparam("of_job"))
    .values(virtual_secs=bindparam("secs"))
)
_ADD_SPENT_SECS = (
    update(table(Job))
    .where(table(Job).c.id == bindparam("of_job"))
    .values(spent_secs=table(Job).c.spent_secs + bindparam("more"))
)
