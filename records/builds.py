"""Builds: libraries that were asked for over the network."""

from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from records import events
from records.errors import NoSuchRow
from records.models import Job, now
from records.service_models import Build
from records.text import storable


def request_build(
    session: Session, job_id: int, *, model_index: int = 0, strict: bool = False
) -> Build:
    """Ask for the library of a job's network with the best records of the time it is built.

    A build that waits already is returned as it is.
    """
    waiting = session.scalars(
        select(Build).where(
            Build.job_id == job_id,
            Build.model_index == model_index,
            Build.strict == strict,
            Build.state == "queued",
        )
    ).first()
    if waiting is not None:
        return waiting
    build = Build(job_id=job_id, model_index=model_index, strict=strict)
    session.add(build)
    session.flush()
    _tell(session, build)
    return build


def next_build(session: Session) -> Build | None:
    """Return the oldest build that waits, or that somebody began and never ended."""
    wanted = select(Build).where(Build.state.in_(("queued", "running"))).order_by(Build.id)
    return session.scalars(wanted.limit(1)).first()


def set_build(session: Session, build_id: int, state: str, **values: Any) -> Build:
    """Change the state of a build, and other columns of it.

    Raises:
        NoSuchRow: If there is no such build.
    """
    columns = {k: storable(v) if isinstance(v, str) else v for k, v in values.items()}
    session.execute(
        update(Build).where(Build.id == build_id).values(state=state, updated=now(), **columns)
    )
    build = get_build(session, build_id)
    _tell(session, build)
    return build


def get_build(session: Session, build_id: int) -> Build:
    """Return a build as it is now.

    Raises:
        NoSuchRow: If there is no such build.
    """
    build = session.get(Build, build_id, populate_existing=True)
    if build is None:
        raise NoSuchRow(f"no build {build_id}")
    return build


def latest_build(
    session: Session, job_id: int, *, model_index: int = 0, state: str | None = None
) -> Build | None:
    """Return the newest build of a job, or the newest in a state."""
    wanted = select(Build).where(Build.job_id == job_id, Build.model_index == model_index)
    if state is not None:
        wanted = wanted.where(Build.state == state)
    return session.scalars(wanted.order_by(Build.id.desc()).limit(1)).first()


def builds_of(session: Session, job_id: int) -> list[Build]:
    """Return the builds of a job, the newest first."""
    wanted = select(Build).where(Build.job_id == job_id).order_by(Build.id.desc())
    return list(session.scalars(wanted))


def visible_archives(session: Session) -> set[str]:
    """Return the file names of all archives, but for those of deleted jobs."""
    wanted = select(Build.archive).join(Job, Job.id == Build.job_id).where(~Job.hidden)
    return {archive for archive in session.scalars(wanted) if archive is not None}


def _tell(session: Session, build: Build) -> None:
    data = {"build": build.id, "state": build.state, "message": build.message}
    events.add_event(session, build.job_id, "build", data)
