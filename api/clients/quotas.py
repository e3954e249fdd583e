"""Limits by role: quotas of subjects, and the priorities that they may set."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from api.clients.auth import Subject
from api.errors import Problem
from api.settings import ApiSettings
from records.service import quotas


@contextmanager
def enforced(
    session: Session, subject: Subject, settings: ApiSettings, *, fills_disk_later: bool = False
) -> Iterator[None]:
    """Check the quotas of a subject around a change in a transaction; admins have none.

    Raises:
        QuotaExceeded: If the change exceeds one.
    """
    if subject.viewer.is_admin:
        yield
        return
    with quotas.enforced(session, subject.name, settings.quotas, fills_disk_later=fills_disk_later):
        yield


def check_priority(subject: Subject, priority: int | None, settings: ApiSettings) -> None:
    """Check that the role of a subject includes a priority; admins may set any.

    Raises:
        Problem: If it does not.
    """
    limit = settings.max_priority
    if priority is not None and priority > limit and not subject.viewer.is_admin:
        raise Problem(
            "forbidden",
            f"a priority above {limit} needs the scope 'admin', got {priority}",
            advice=f"Ask for {limit} or less, or use a token with the scope admin.",
        )
