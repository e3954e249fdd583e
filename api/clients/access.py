"""Access of subjects: owners of jobs, quotas and priorities."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from api.clients.auth import Subject
from api.errors import Problem
from api.load.transactions import Transactions
from api.settings import ApiSettings
from records.service.owners import access, quotas
from records.service.owners.access import Ownership

_MAX_REMEMBERED = 100_000


@dataclass
class Ownerships:
    """Finds the owner and the project of jobs by their numbers."""

    reads: Transactions
    _remembered: dict[int, Ownership] = field(default_factory=dict)

    async def of(self, job_id: int) -> Ownership:
        """Return the owner and the project of a job.

        Raises:
            NoSuchRow: If the job does not exist.
        """
        remembered = self._remembered.get(job_id)
        if remembered is not None:
            return remembered
        return await self.reads.run(self._read, job_id)

    def _read(self, session: Session, job_id: int) -> Ownership:
        job = access.ownership(session, job_id)
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[job_id] = job
        return job


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
