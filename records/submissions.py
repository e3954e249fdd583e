"""Submissions: jobs that were asked for over the network, before their model was loaded."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from records import events, jobs
from records.errors import KeyReused
from records.models import Job, JobState, now
from records.service_models import IdempotencyKey
from records.text import storable
from records.upsert import find_or_insert

# What an ended job becomes when it is asked for again with more to spend.
_RESTARTED: tuple[JobState, ...] = ("failed", "cancelled", "paused")


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job as it was asked for.

    Attributes:
        submission: Hash of what makes it the job it is: models, target, goal, seed; neither its
            budget nor its name nor its priority.
        request: What its coordinator needs to begin, as JSON.
        objective: Name of the objective.
        seed: Of search and scheduler.
        budget_trials: Limit; 0 splits the network into tasks and measures nothing.
        budget_secs: Limit.
        priority: A job gets twice the device time of one whose priority is 1 lower; None is 0
            for a new job, and changes nothing of one that exists.
        name: For people.
    """

    submission: str
    request: dict[str, Any]
    objective: str
    seed: int
    budget_trials: int | None
    budget_secs: float | None
    priority: int | None
    name: str


def submit(session: Session, new: Submission) -> tuple[Job, bool]:
    """Return the job of a submission, and whether it is new.

    One that exists has its limits raised to what is asked for now, and goes on if it was
    stopped, if it was done with less, or if it was to stop at another gain. Who asks
    for 0 trials wants its tasks alone, and gets one that has them as it is.
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
    }
    before = session.scalar(select(Job.id).where(Job.submission == new.submission))
    found = find_or_insert(session, Job, {"submission": new.submission}, values)
    job = jobs.locked(session, found.id)
    if before is None and job.n_events == 0:
        events.add_event(session, job.id, "state", {"state": "queued", "message": None})
        session.refresh(job)
        return job, True
    _ask_again(session, job, new)
    session.refresh(job)
    return job, False


def assign(
    session: Session, job_id: int, network_id: int, target_id: int, settings: dict[str, Any]
) -> Job:
    """Say what network and target a job turned out to be about.

    Raises:
        NoSuchRow: If there is no such job.
    """
    job = jobs.locked(session, job_id)
    job.network_id, job.target_id = network_id, target_id
    job.settings = {**job.settings, **settings}
    session.flush()
    return job


def waiting(session: Session) -> list[Job]:
    """Return the submitted jobs that a coordinator should have, the oldest first.

    Jobs that are running are among them: whoever asks is the only coordinator, so that nobody
    runs those that it does not run itself.
    """
    wanted = select(Job).where(Job.submission != "", Job.state.in_(("queued", "running")))
    return list(session.scalars(wanted.order_by(Job.id)))


def visible_requests(session: Session) -> list[dict[str, Any]]:
    """Return what the jobs of the service, but for deleted ones, were asked to do."""
    wanted = select(Job.request).where(Job.submission != "", ~Job.hidden)
    return [request for request in session.scalars(wanted) if request is not None]


def resume(session: Session, job_id: int) -> bool:
    """Let a paused or failed or cancelled job go on; returns whether it was one."""
    return jobs.set_state(session, job_id, "queued", only_from=_RESTARTED)


def hide(session: Session, job_id: int) -> bool:
    """Delete a job that has ended or rests; what it measured stays. False if it has not."""
    job = jobs.locked(session, job_id)
    if job.state in ("queued", "running"):
        return False
    job.hidden = True
    session.flush()
    return True


def job_of_key(
    session: Session, subject: str, key: str, fingerprint: str, keep: timedelta
) -> int | None:
    """Return the job that a client's idempotency key stood for.

    Args:
        session: The transaction.
        subject: Who asks; keys of others are others.
        key: The key.
        fingerprint: Hash of the request it came with.
        keep: Older keys are forgotten.

    Raises:
        KeyReused: If it came with another request before.
    """
    session.execute(delete(IdempotencyKey).where(IdempotencyKey.created < now() - keep))
    row = session.get(IdempotencyKey, (subject, key))
    if row is None:
        return None
    if row.fingerprint != fingerprint:
        raise KeyReused(f"the idempotency key {key!r} was used for another request before")
    return row.job_id


def keep_key(session: Session, subject: str, key: str, fingerprint: str, job_id: int) -> int:
    """Remember what a key stands for; returns the job of whoever was first.

    Raises:
        KeyReused: If somebody was quicker, with another request.
    """
    values = {"fingerprint": fingerprint, "job_id": job_id}
    row = find_or_insert(session, IdempotencyKey, {"subject": subject, "key": key}, values)
    if row.fingerprint != fingerprint:
        raise KeyReused(f"the idempotency key {key!r} was used for another request before")
    return row.job_id


def _ask_again(session: Session, job: Job, new: Submission) -> None:
    if new.budget_trials == 0:
        _ask_for_tasks(session, job)
        return
    grown = _raise_limits(job, new)
    stops_elsewhere = _least_gain(job.request) not in (None, _least_gain(new.request))
    job.request = new.request
    job.name = storable(new.name) or job.name
    job.hidden = False
    session.flush()
    if grown:
        jobs.tell_budget(session, job)
    if new.priority not in (None, job.priority):
        jobs.set_priority(session, job.id, new.priority)
    if job.state in _RESTARTED or (job.state == "done" and (grown or stops_elsewhere)):
        jobs.set_state(session, job.id, "queued")


def _least_gain(request: dict[str, Any] | None) -> Any:
    return (request or {}).get("least_gain_secs")


def _ask_for_tasks(session: Session, job: Job) -> None:
    """Have a job split its network, unless it did; what it may spend is none of our business."""
    job.hidden = False
    session.flush()
    if job.network_id is None and job.state in _RESTARTED:
        jobs.set_state(session, job.id, "queued")


def _raise_limits(job: Job, new: Submission) -> bool:
    before = (job.budget_trials, job.budget_secs)
    if job.budget_trials == 0 and new.budget_trials is None:
        # It was to be split only; now it is to be tuned, for as long as the other limit says.
        job.budget_trials = None
    if new.budget_trials is not None:
        job.budget_trials = max(job.budget_trials or 0, new.budget_trials)
    if new.budget_secs is not None:
        job.budget_secs = max(job.budget_secs or 0.0, new.budget_secs)
    return (job.budget_trials, job.budget_secs) != before
