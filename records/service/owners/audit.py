"""The audit log: actions requested from the service, with their subject and address."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from records.service.service_models import AuditEvent
from records.tuning.events import finite


def log_action(
    session: Session,
    subject: str,
    address: str,
    action: str,
    job_id: int | None = None,
    detail: dict[str, Any] | None = None,
) -> None:
    """Record an action in the transaction that performs it.

    Args:
        subject: Name of a token, or ``anonymous``.
        address: Network address of the client.
        action: Such as ``tune`` or ``cancel``.
        job_id: Job that the action concerns.
        detail: Further facts, as JSON, without secrets.
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
    """Return at most ``limit`` actions, the newest first, of one job or before an id."""
    stmt = select(AuditEvent).order_by(AuditEvent.id.desc()).limit(limit)
    if job_id is not None:
        stmt = stmt.where(AuditEvent.job_id == job_id)
    if before is not None:
        stmt = stmt.where(AuditEvent.id < before)
    return list(session.scalars(stmt))
