"""The audit log: who asked the service for what, and from where."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from records.events import finite
from records.service_models import AuditEvent


def log_action(
    session: Session,
    subject: str,
    address: str,
    action: str,
    job_id: int | None = None,
    detail: dict[str, Any] | None = None,
) -> None:
    """Note an action in the transaction that does it.

    Args:
        session: The transaction.
        subject: Name of a token, or ``anonymous``.
        address: Of the client.
        action: Such as ``tune`` or ``cancel``.
        job_id: The job it was about.
        detail: What else should be known, as JSON; no secrets.
    """
    session.add(
        AuditEvent(
            subject=subject,
            address=address,
            action=action,
            job_id=job_id,
            detail=finite(detail or {}),
        )
    )
    session.flush()


def actions(
    session: Session, *, job_id: int | None = None, before: int | None = None, limit: int = 100
) -> list[AuditEvent]:
    """Return actions, the newest first: of one job, or before an id, at most ``limit``."""
    wanted = select(AuditEvent).order_by(AuditEvent.id.desc()).limit(limit)
    if job_id is not None:
        wanted = wanted.where(AuditEvent.job_id == job_id)
    if before is not None:
        wanted = wanted.where(AuditEvent.id < before)
    return list(session.scalars(wanted))
