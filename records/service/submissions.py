"""Submissions: jobs requested over the network, stored before their model is loaded."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from records import jobs
from records.errors import KeyReused
from records.models import Job, JobState, now
from records.service.service_models import IdempotencyKey
from records.storage.text import storable
from records.storage.upsert import find_or_insert
from records.tuning import events, job_states

# States from which a job is queued again when it is resumed or submitted again.
_RESTARTED: tuple[JobState, ...] = ("failed", "cancelled", "paused")


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A requested job.

    Attributes:
        submission: Hash of the job's identity: owner, models, target, goal and seed, but neither
            budget nor name nor priority.
        request: Data that the coordinator needs to start, as JSON.
        seed: Seed of search and scheduler.
        budget_trials: Maximum number of trials; 0 extracts the tasks and measures nothing.
        budget_secs: Maximum time, seconds.
        priority: Each step doubles the share of device time; None is 0 for a new job and leaves
            an existing job unchanged.
        name: Display name.
        owner: Name of the token; None for a service without tokens.
        project: Project of the token.
    """

    submission: str
    request: dict[str, Any]
    objective: str
    seed: int
    budget_trials: int | None
    budget_secs: float | None
    priority: int | None
    name: str
    owner: str | None = None
    project: str | None = None


def owned(submission: str, owner: str | None) -> str:
    """Return the identity of a request of an owner, so that equal requests of two stay apart."""
    if owner is None:
        return submission
    return hashlib.sha256(f"{owner}\n{submission}".encode()).hexdigest()


def submit(session: Session, new: Submission) -> tuple[Job, bool]:
    """Return the job of a submission, and true if it is new.

    An existing job has its limits raised to those of the request. Unless it is quarantined, it is
    queued again if it was stopped, if its limits grew, or if the request has another threshold of
    gain. A request for 0 trials needs the tasks only; a job that has them stays as it is.
    """
    values = {
        "request": new.request,
        "objective": new.objective,
        "seed": new.seed,
        "budget_trials": new.budget_trials,
        "budget_secs": new.budget_secs,
        "priority": new.priority or 0,
        "name": storable(new.name),
        "settings": {},
        "owner": new.owner,
        "project": new.project,
    }
    before = session.scalar(select(Job.id).where(Job.submission == new.submission))
    row = find_or_insert(session, Job, {"submission": new.submission}, values)
    job = jobs.locked(session, row.id)
    if before is None and job.n_events == 0:
        events.add_event(session, job.id, "state", {"state": "queued", "message": None})
        session.refresh(job)
        return job, True
    _update(session, job, new)
    session.refresh(job)
    return job, False


def assign(
    session: Session, job_id: int, network_id: int, target_id: int, settings: dict[str, Any]
) -> Job:
    """Set the network and target of a job once its model is loaded.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    job = jobs.locked(session, job_id)
    job.network_id, job.target_id = network_id, target_id
    job.settings = {**job.settings, **settings}
    session.flush()
    return job


def claimable(session: Session) -> list[Job]:
    """Return the submitted jobs that a coordinator should run, the oldest first.

    Running jobs are included: the caller is the only coordinator, so a running job that it does
    not run itself is run by no process.
    """
    stmt = select(Job).where(Job.submission != "", Job.state.in_(("queued", "running")))
    return list(session.scalars(stmt.order_by(Job.id)))


def has_any(session: Session) -> bool:
    """Return whether the database has a job of the service."""
    stmt = select(Job.id).where(Job.submission != "").limit(1)
    return session.scalar(stmt) is not None


def resume(session: Session, job_id: int, *, by_operator: bool = False) -> bool:
    """Queue a paused, failed or cancelled job again; False if it cannot be resumed.

    A job that is quarantined has to be released, see :func:`records.tuning.attempts.release`. Its
    owner could keep one from that by resuming it after each death: only operators reset attempts.

    Args:
        by_operator: True to forget the processes that died over it.
    """
    job = jobs.locked(session, job_id)
    if job.quarantined:
        return False
    if by_operator:
        job.attempts = 0
    return jobs.set_state(session, job_id, "queued", only_from=_RESTARTED)


def hide(session: Session, job_id: int) -> bool:
    """Delete a job but keep its records; False if the job is queued or running."""
    job = jobs.locked(session, job_id)
    if job_states.state_of(session, job_id) in ("queued", "running"):
        return False
    jobs.set_state(session, job_id, "paused", only_from=("running",))
    job.hidden = True
    session.flush()
    return True


def job_of_key(
    session: Session, subject: str, key: str, fingerprint: str, keep: timedelta
) -> int | None:
    """Return the job behind a client's idempotency key, or None.

    Args:
        subject: Owner of the key; each subject has its own keys.
        fingerprint: Hash of the request.
        keep: Lifetime of keys; older ones are deleted.

    Raises:
        KeyReused: If the key was used with another request.
    """
    session.execute(delete(IdempotencyKey).where(IdempotencyKey.created < now() - keep))
    row = session.get(IdempotencyKey, (subject, key))
    if row is None:
        return None
    if row.fingerprint != fingerprint:
        raise KeyReused(f"the idempotency key {key!r} was used for another request before")
    return row.job_id


def has_key(session: Session, subject: str, key: str) -> bool:
    """Return whether a client used an idempotency key before."""
    return session.get(IdempotencyKey, (subject, key)) is not None


def keep_key(session: Session, subject: str, key: str, fingerprint: str, job_id: int) -> int:
    """Store the job of an idempotency key, and return the job that was stored first.

    Raises:
        KeyReused: If another request with the same key was faster.
    """
    values = {"fingerprint": fingerprint, "job_id": job_id}
    row = find_or_insert(session, IdempotencyKey, {"subject": subject, "key": key}, values)
    if row.fingerprint != fingerprint:
        raise KeyReused(f"the idempotency key {key!r} was used for another request before")
    return row.job_id


def stop_below_secs(request: Mapping[str, Any] | None) -> float | None:
    """Return the gain below which a requested job stops, seconds; None if it sets no limit."""
    stop_below_ms = (request or {}).get("stop_below_ms")
    return None if stop_below_ms is None else float(stop_below_ms) / 1e3


def _update(session: Session, job: Job, new: Submission) -> None:
    if new.budget_trials == 0:
        # Queue the extraction of a job's tasks unless it has them; its limits stay.
        job.hidden = False
        session.flush()
        if job.network_id is None and job.state in _RESTARTED and not job.quarantined:
            jobs.set_state(session, job.id, "queued")
        return
    before = (job.budget_trials, job.budget_secs)
    if job.budget_trials == 0 and new.budget_trials is None:
        # The first request was for the tasks only; this one tunes within the other limit.
        job.budget_trials = None
    if new.budget_trials is not None:
        job.budget_trials = max(job.budget_trials or 0, new.budget_trials)
    if new.budget_secs is not None:
        job.budget_secs = max(job.budget_secs or 0.0, new.budget_secs)
    is_raised = (job.budget_trials, job.budget_secs) != before
    old, requested = stop_below_secs(job.request), stop_below_secs(new.request)
    has_new_threshold = old not in (None, requested)
    job.request = new.request
    job.name = storable(new.name) or job.name
    job.hidden = False
    session.flush()
    if is_raised:
        jobs.add_budget_event(session, job)
    if new.priority not in (None, job.priority):
        jobs.set_priority(session, job.id, new.priority)
    if job.quarantined:
        return
    if job.state in _RESTARTED or (job.state == "done" and (is_raised or has_new_threshold)):
        jobs.set_state(session, job.id, "queued")
