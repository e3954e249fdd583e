"""Access: the jobs that a client may see, and those that it may change.

A job belongs to the token that submitted it. Its owner and administrators change it; the other
tokens of its project only see it. A job without an owner belongs to the administrators. Builds,
libraries and uploaded models belong to the owner of their job.
"""

from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import ColumnElement, or_, select, true
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import Job, Library, Network
from records.service.service_models import Build


class Ownership(NamedTuple):
    """Owner and project of a job; neither changes while the job exists."""

    owner: str | None
    project: str | None


@dataclass(frozen=True)
class Viewer:
    """A client of the service.

    Attributes:
        name: Name of its token.
        project: Project of its token.
        is_admin: True if it sees and changes everything.
    """

    name: str
    project: str | None = None
    is_admin: bool = False

    def sees(self, job: Ownership) -> bool:
        """Return whether the client may read a job, its builds and its libraries."""
        shares = self.project is not None and job.project == self.project
        return self.changes(job) or shares

    def changes(self, job: Ownership) -> bool:
        """Return whether the client may change a job and request its builds."""
        return self.is_admin or (job.owner is not None and job.owner == self.name)


#: A command line that opened the database, which may do everything.
EVERYTHING = Viewer("", is_admin=True)


def ownership(session: Session, job_id: int) -> Ownership:
    """Return the owner and the project of a job.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    row = session.execute(select(Job.owner, Job.project).where(Job.id == job_id)).one_or_none()
    if row is None:
        raise NoSuchRow(f"no job {job_id}")
    return Ownership(*row)


def check_visible(session: Session, viewer: Viewer, job_id: int) -> None:
    """Check that a client may see a job.

    Raises:
        NoSuchRow: If it may not, as if the job did not exist.
    """
    if not viewer.sees(ownership(session, job_id)):
        raise NoSuchRow(f"no job {job_id}")


def visible_jobs(viewer: Viewer) -> ColumnElement[bool]:
    """Return the condition on ``Job`` that selects the jobs that a client may see."""
    if viewer.is_admin:
        return true()
    own = Job.owner == viewer.name
    return own if viewer.project is None else or_(own, Job.project == viewer.project)


def visible_networks(viewer: Viewer) -> ColumnElement[bool]:
    """Return the condition that selects the networks of jobs that a client may see."""
    if viewer.is_admin:
        return true()
    return Network.id.in_(select(Job.network_id).where(visible_jobs(viewer)))


def visible_libraries(viewer: Viewer) -> ColumnElement[bool]:
    """Return the condition that selects the libraries built for jobs that a client may see."""
    if viewer.is_admin:
        return true()
    built = select(Build.library_key).join(Job, Job.id == Build.job_id)
    return Library.key.in_(built.where(visible_jobs(viewer), ~Job.hidden))
