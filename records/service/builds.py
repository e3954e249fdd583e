"""Builds: libraries requested over the network."""

from typing import Any, NamedTuple

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import Job, now
from records.service.service_models import Build
from records.storage.text import storable
from records.tuning import events


def request_build(
    session: Session,
    job_id: int,
    *,
    model_index: int = 0,
    strict: bool = False,
    profile: bool = False,
) -> Build:
    """Queue a build of a job's network with the best records at the time of the build.

    A build that is already queued, or quarantined, is returned unchanged.
    """
    queued = session.scalars(
        select(Build).where(
            Build.job_id == job_id,
            Build.model_index == model_index,
            Build.strict == strict,
            Build.profile == profile,
            (Build.state == "queued") | Build.quarantined,
        )
    ).first()
    if queued is not None:
        return queued
    build = Build(job_id=job_id, model_index=model_index, strict=strict, profile=profile)
    session.add(build)
    session.flush()
    _add_event(session, build)
    return build


class WaitingBuild(NamedTuple):
    """A build that waits, and the owner of its job."""

    build: Build
    owner: str | None


def waiting(session: Session) -> list[WaitingBuild]:
    """Return the builds that are queued, or that a process began and never ended, oldest first."""
    stmt = (
        select(Build, Job.owner)
        .join(Job, Job.id == Build.job_id)
        .where(Build.state.in_(("queued", "running")))
        .order_by(Build.id)
    )
    return [WaitingBuild(build, owner) for build, owner in session.execute(stmt)]


def set_build(session: Session, build_id: int, state: str, **values: Any) -> Build:
    """Change the state and other columns of a build.

    Raises:
        NoSuchRow: If the build does not exist.
    """
    columns = {k: storable(v) if isinstance(v, str) else v for k, v in values.items()}
    session.execute(
        update(Build).where(Build.id == build_id).values(state=state, updated=now(), **columns)
    )
    build = get_build(session, build_id)
    _add_event(session, build)
    return build


def is_wanted(session: Session, build_id: int) -> bool:
    """Return whether a build is running and its job was not deleted."""
    stmt = select(Build.id).join(Job, Job.id == Build.job_id)
    stmt = stmt.where(Build.id == build_id, Build.state == "running", ~Job.hidden)
    return session.scalar(stmt) is not None


def update_archive(session: Session, archive: str, *, sha256: str, n_bytes: int) -> None:
    """Store the content of an archive that was written again, for all builds that name it."""
    session.execute(
        update(Build).where(Build.archive == archive).values(sha256=sha256, n_bytes=n_bytes)
    )


def get_build(session: Session, build_id: int) -> Build:
    """Return the present state of a build.

    Raises:
        NoSuchRow: If the build does not exist.
    """
    build = session.get(Build, build_id, populate_existing=True)
    if build is None:
        raise NoSuchRow(f"no build {build_id}")
    return build


def latest_build(
    session: Session, job_id: int, *, model_index: int = 0, state: str | None = None
) -> Build | None:
    """Return the newest build of a job, in a given state if one is named."""
    stmt = select(Build).where(Build.job_id == job_id, Build.model_index == model_index)
    if state is not None:
        stmt = stmt.where(Build.state == state)
    return session.scalars(stmt.order_by(Build.id.desc()).limit(1)).first()


def builds_of(session: Session, job_id: int) -> list[Build]:
    """Return the builds of a job, the newest first."""
    stmt = select(Build).where(Build.job_id == job_id).order_by(Build.id.desc())
    return list(session.scalars(stmt))


def _add_event(session: Session, build: Build) -> None:
    data = {"build": build.id, "state": build.state, "message": build.message}
    events.add_event(session, build.job_id, "build", data)
