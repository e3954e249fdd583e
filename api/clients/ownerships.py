"""Owners of jobs, remembered because they never change."""

from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from api.load.transactions import Transactions
from records.service import access
from records.service.access import Ownership

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
