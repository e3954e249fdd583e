"""Webhooks: the addresses that hear of the end of a job, and the state of their deliveries.

Every end of a job is one delivery for each of its addresses, and replaces one that is still under
way. A process that delivers claims a row for a minute: if it dies, another one repeats the
delivery under the same id.
"""

import uuid
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from records.models import Job, JobState, now
from records.service.service_models import Webhook
from records.storage.text import storable
from records.storage.upsert import find_or_insert
from records.tuning import events

ENDS: tuple[JobState, ...] = ("done", "failed", "cancelled")
#: Of one delivery; the last one is 15 hours after the first.
MAX_ATTEMPTS = 8
_FIRST_PAUSE_SECS = 10.0
_PAUSE_FACTOR = 4.0
_CLAIM = timedelta(minutes=1)
_MAX_STATUS_CHARS = 200


@dataclass(frozen=True)
class Delivery:
    """A claimed delivery.

    Attributes:
        id: Id of the delivery, the same at every attempt.
        of_service: True for the address of the service, False for that of the job.
        url: The address.
        owner: Name of the token of the job.
        state: State in which the job ended.
        name: Name of the job.
        message: Reason for the state, unless the job continued since.
    """

    id: str
    job_id: int
    of_service: bool
    url: str
    owner: str | None
    state: str
    name: str | None
    message: str | None


def register(session: Session, job: Job, url: str, *, of_service: bool = False) -> None:
    """Set an address of a job; a job that has ended already is reported to its own at once."""
    key = {"job_id": job.id, "of_service": of_service}
    row = find_or_insert(session, Webhook, key, {"url": url, "attempts": 0})
    row.url = url
    if job.state in ENDS and not of_service:
        _schedule(row, job.state)
    session.flush()


def schedule(session: Session, job_id: int, state: JobState) -> None:
    """Schedule the deliveries for the end of a job; any other state schedules none."""
    if state in ENDS:
        for row in session.scalars(select(Webhook).where(Webhook.job_id == job_id)):
            _schedule(row, state)
        session.flush()


def _schedule(row: Webhook, state: JobState) -> None:
    row.delivery, row.state, row.due = uuid.uuid4().hex, state, now()
    row.attempts, row.status, row.delivered = 0, None, False


def is_any_due(session: Session) -> bool:
    """Return whether a delivery is due."""
    return session.scalar(select(Webhook.job_id).where(Webhook.due <= now()).limit(1)) is not None


def claim(session: Session, limit: int) -> list[Delivery]:
    """Claim deliveries that are due, those with the fewest attempts first."""
    rows = session.execute(
        select(Webhook, Job)
        .join(Job, Job.id == Webhook.job_id)
        .where(Webhook.due <= now())
        .order_by(Webhook.attempts, Webhook.due)
        .limit(limit)
        .with_for_update(of=Webhook, skip_locked=True)
    ).all()
    claimed = []
    for hook, job in rows:
        hook.attempts, hook.attempted, hook.due = hook.attempts + 1, now(), now() + _CLAIM
        claimed.append(
            Delivery(
                id=hook.delivery or "",
                job_id=job.id,
                of_service=hook.of_service,
                url=hook.url,
                owner=job.owner,
                state=hook.state or "",
                name=job.name,
                message=job.message if job.state == hook.state else None,
            )
        )
    session.flush()
    return claimed


def finish(session: Session, delivery: Delivery, status: str, *, delivered: bool) -> bool:
    """Store the outcome of an attempt, as an event of the job too.

    One that failed is repeated after a pause that grows, unless it was the last.

    Returns:
        False if the job has ended once more since, so that another delivery is due.
    """
    # In the order of an end of the job, or the two could wait for each other.
    session.get(Job, delivery.job_id, with_for_update={"key_share": True})
    key = (delivery.job_id, delivery.of_service)
    row = session.get(Webhook, key, with_for_update=True, populate_existing=True)
    if row is None or row.delivery != delivery.id:
        return False
    is_over = delivered or row.attempts >= MAX_ATTEMPTS
    pause = timedelta(seconds=_FIRST_PAUSE_SECS * _PAUSE_FACTOR ** (row.attempts - 1))
    row.status, row.delivered = storable(status)[:_MAX_STATUS_CHARS], delivered
    row.due = None if is_over else now() + pause
    session.flush()
    outcome = {"of_service": row.of_service, "status": row.status, "delivered": delivered}
    events.add_event(session, row.job_id, "webhook", outcome)
    return True


def of_job(session: Session, job_id: int) -> list[Webhook]:
    """Return the webhooks of a job, its own first."""
    stmt = select(Webhook).where(Webhook.job_id == job_id).order_by(Webhook.of_service)
    return list(session.scalars(stmt))
