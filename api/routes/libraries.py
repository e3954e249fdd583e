"""Compiled libraries: requests for builds, and downloads."""

import base64
import re
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import FileResponse
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from api.clients import access
from api.dependencies import (
    ChangingJob,
    ReaderDep,
    Reading,
    ReadingJob,
    StateDep,
    WriterDep,
)
from api.documents import pagination, schemas
from api.documents.caching import matches
from api.documents.openapi import problems
from api.documents.schemas import BuildIn, Id
from api.errors import Problem
from api.load.downloads import Download
from api.load.fair_semaphore import SENDER
from api.routes import PREFIX
from api.uploads.incoming import check_disk
from api.waiting import Wait, wait_until
from records import jobs
from records.errors import NoSuchRow
from records.service import builds
from records.service.owners import audit
from records.service.service_models import Build as BuildRow
from records.tuning import job_states
from tuner.queries import catalogue
from tuner.schemas import Build, LibraryInfo, Page

router = APIRouter(prefix=PREFIX, tags=["libraries"])
_ARCHIVE = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]*\.tar\.gz", re.ASCII)
ModelIndex = Annotated[
    int, Query(ge=0, le=1000, description="Index of the network among those of the job.")
]


@router.post(
    "/jobs/{job_id}/build", response_model=Build, status_code=202, responses=problems(404, 409)
)
def request_build(
    job_id: Id,
    subject: ChangingJob,
    session: WriterDep,
    state: StateDep,
    body: Annotated[BuildIn | None, Body()] = None,
) -> Build:
    """Request the library of a job's network, with the best records at the time of the build."""
    options = body or BuildIn()
    job = jobs.get_job(session, job_id)
    n_models = len((job.request or {}).get("models", ()))
    if not n_models:
        raise Problem(
            "wrong-state",
            f"job {job_id} belongs to a command line: its model is not on this service",
            advice="Run tuner build where the model is, or submit the model to this service.",
        )
    if options.model_index >= n_models:
        raise Problem("invalid", f"job {job_id} has {n_models} networks, numbered from 0")
    if job.network_id is None:
        state_now = job_states.state_of(session, job_id)
        raise Problem(
            "wrong-state",
            f"job {job_id} is {state_now}, and its network is not split into tasks yet",
            advice="Wait until its table has tasks.",
        )
    check_disk(state.settings)
    with access.enforced(session, subject, state.settings, fills_disk_later=True):
        build = builds.request_build(
            session,
            job_id,
            model_index=options.model_index,
            strict=options.strict,
            profile=options.profile,
        )
    detail = {"build": build.id, **options.model_dump()}
    audit.log_action(session, subject.name, subject.address, "build", job_id, detail)
    state.tables.forget(job_id)
    return catalogue.view_build(build)


@router.get("/jobs/{job_id}/builds/{build_id}", response_model=Build, responses=problems(404))
async def read_build(
    job_id: Id,
    build_id: Id,
    request: Request,
    _subject: ReadingJob,
    state: StateDep,
    wait: Wait = 0.0,
) -> Build:
    """Serve the state of a build; wait until it is done or has failed."""
    await wait_until(
        request,
        job_id,
        wait,
        lambda session: _build(session, job_id, build_id).state in ("done", "failed"),
    )
    return await state.reads.run(
        lambda session: catalogue.view_build(_build(session, job_id, build_id))
    )


def _build(session: Session, job_id: int, build_id: int) -> BuildRow:
    jobs.get_job(session, job_id)
    build = builds.get_build(session, build_id)
    if build.job_id != job_id:
        raise NoSuchRow(f"no build {build_id} of job {job_id}")
    return build


@router.get(
    "/jobs/{job_id}/library",
    response_class=FileResponse,
    responses={
        200: {"content": {"application/gzip": {}}},
        206: {"description": "The requested range", "content": {"application/gzip": {}}},
        304: {"description": "Not modified"},
        **problems(404, 409, 416),
    },
)
async def download_library(
    job_id: Id,
    request: Request,
    state: StateDep,
    subject: ReadingJob,
    model_index: ModelIndex = 0,
) -> Response:
    """Download the newest library of a job, an archive with its manifest; supports ranges.

    The audit log has every download.
    """
    state.streams.check(SENDER.get().client)
    build = await state.reads.run(_newest, job_id, model_index)
    digest = build.sha256 or ""
    headers = {
        "etag": f'"{digest}"',
        "repr-digest": f"sha-256=:{base64.b64encode(bytes.fromhex(digest)).decode()}:",
        "cache-control": "no-cache",
        "x-sha256": digest,
    }
    if matches(request.headers.get("if-none-match"), headers["etag"]):
        return Response(status_code=304, headers=headers)
    path = await run_in_threadpool(archive_path, state.settings.data_dir, build)
    if request.method == "GET":
        action = (subject.name, subject.address, "download", job_id)
        detail = {"build": build.id, "sha256": digest}
        await state.writes.run(audit.log_action, *action, detail)
    name = f"job-{job_id}-{(build.library_key or digest)[:12]}.tar.gz"
    answer = {"headers": headers, "media_type": "application/gzip", "filename": name}
    return Download(path, state.streams, **answer)


router.add_api_route(
    "/jobs/{job_id}/library",
    download_library,
    methods=["HEAD"],
    include_in_schema=False,
    response_class=FileResponse,
)


@router.get("/libraries", response_model=Page[LibraryInfo])
def list_libraries(
    subject: Reading,
    session: ReaderDep,
    cursor: schemas.Cursor = None,
    limit: schemas.Limit = 50,
) -> Page[LibraryInfo]:
    """List compiled networks, the newest first."""
    libraries = catalogue.list_libraries(
        session, pagination.number_of(cursor), limit + 1, subject.viewer
    )
    return Page(*pagination.newest_first(libraries, limit))


def archive_path(data_dir: Path, build: BuildRow) -> Path:
    """Return the path of the archive of a build.

    Raises:
        Problem: If the archive was removed, or its row names a file elsewhere.
    """
    folder = (data_dir / "archives").resolve()
    name = build.archive or ""
    path = (folder / name).resolve() if _ARCHIVE.fullmatch(name) else folder
    if path.parent != folder or not path.is_file():
        raise Problem("not-built", f"the archive of build {build.id} was removed")
    return path


def _newest(session: Session, job_id: int, model_index: int) -> BuildRow:
    job = jobs.get_job(session, job_id)
    build = builds.latest_build(session, job_id, model_index=model_index, state="done")
    if build is None:
        raise Problem(
            "not-built",
            f"job {job.id} ({job_states.state_of(session, job.id)}) has no finished build",
        )
    return build
