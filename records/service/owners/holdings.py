"""Holdings of jobs: the uploads, libraries and workloads that the files of a service belong to."""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, or_, select
from sqlalchemy.orm import Session

from records.models import Job, Library, NetworkTask, Task, Workload
from records.service.service_models import Build


def kept(before: datetime) -> ColumnElement[bool]:
    """Return the condition on jobs that exist, or were deleted after a time."""
    return or_(~Job.hidden, Job.updated >= before)


def requests(session: Session, jobs: ColumnElement[bool]) -> list[dict[str, Any]]:
    """Return the requests of some jobs of the service."""
    stmt = select(Job.request).where(Job.submission != "", jobs)
    return [request for request in session.scalars(stmt) if request is not None]


def archives(session: Session, jobs: ColumnElement[bool]) -> set[str]:
    """Return the file names of the archives of some jobs."""
    return _values(session, select(Build.archive).join(Job, Job.id == Build.job_id).where(jobs))


def library_keys(session: Session, jobs: ColumnElement[bool]) -> set[str]:
    """Return the keys of the libraries that were built for some jobs."""
    return _values(session, select(Build.library_key).join(Job, Job.id == Build.job_id).where(jobs))


def workload_hashes(session: Session, jobs: ColumnElement[bool]) -> set[str]:
    """Return the hashes of the workloads in the networks of some jobs."""
    networks = select(Job.network_id).where(jobs, Job.network_id.is_not(None))
    stmt = (
        select(Workload.hash)
        .join(Task, Task.workload_id == Workload.id)
        .join(NetworkTask, NetworkTask.task_id == Task.id)
        .where(NetworkTask.network_id.in_(networks))
    )
    return _values(session, stmt.distinct())


def cache_entries(session: Session, keys: set[str], *, of_others: bool = False) -> set[str]:
    """Return the digests of the cache entries from which libraries were linked.

    Args:
        of_others: Return those of all other libraries instead.
    """
    manifests = session.execute(select(Library.key, Library.manifest))
    return {
        subgraph["entry"]
        for key, manifest in manifests
        if (key in keys) != of_others
        for subgraph in manifest.get("subgraphs", ())
        if subgraph.get("entry")
    }


def _values(session: Session, stmt: Select[Any]) -> set[str]:
    return {value for value in session.scalars(stmt) if value is not None}
