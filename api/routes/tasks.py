"""The progress of a job: table, picks, history, failures and curves."""

import tempfile
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from api.dependencies import ReaderDep, ReadingJob, StateDep
from api.documents import formats, pagination, schemas
from api.documents.caching import matches
from api.documents.openapi import problems
from api.documents.schemas import Id
from api.errors import Problem
from api.routes import PREFIX
from records import jobs, tasks
from records.tuning import job_states
from tuner.job_replay import recording as recordings
from tuner.queries import history, picks
from tuner.queries import jobs as job_queries
from tuner.schemas import FailureView, HistoryView, JobView, Page, PickView

router = APIRouter(prefix=PREFIX, tags=["jobs"])
_ONE = problems(404)
_MIN_GZIP_BYTES = 1024


@router.get(
    "/jobs/{job_id}/tasks",
    response_model=JobView,
    responses={
        200: {"content": {"text/csv": {}, "text/plain": {}}},
        304: {"description": "Not modified"},
        **problems(404, 406),
    },
)
async def read_tasks(
    job_id: Id,
    request: Request,
    _subject: ReadingJob,
    state: StateDep,
    format_: Annotated[
        Literal["json", "csv", "text"] | None,
        Query(alias="format", description="Overrides Accept."),
    ] = None,
) -> Response:
    """Serve the task scheduler table, at most a second old, as JSON, CSV or plain text."""
    headers = request.headers
    kind = formats.negotiate(headers.get("accept"), format_)
    body = state.tables.cached(job_id, kind) or await state.tables.body(job_id, kind)
    answer_headers = {
        "etag": body.etag,
        "cache-control": "no-cache",
        "vary": "accept, accept-encoding",
    }
    if matches(headers.get("if-none-match"), body.etag):
        return Response(status_code=304, headers=answer_headers)
    content = body.plain
    if len(content) >= _MIN_GZIP_BYTES and "gzip" in headers.get("accept-encoding", ""):
        content, answer_headers["content-encoding"] = body.zipped, "gzip"
    return Response(content, headers=answer_headers, media_type=body.media_type)


@router.get("/jobs/{job_id}/picks", response_model=Page[PickView], responses=_ONE)
def list_picks(
    job_id: Id,
    _subject: ReadingJob,
    session: ReaderDep,
    before: schemas.OptionalId = None,
    limit: schemas.Limit = 50,
) -> Page[PickView]:
    """List the picks with their reasons, the newest first."""
    rows = picks.read_picks(session, job_id, before=before, limit=limit + 1)
    shown, more = pagination.cut(rows, limit)
    return Page(shown, shown[-1].sequence if more else None)


@router.get("/jobs/{job_id}/history", response_model=HistoryView, responses=_ONE)
def read_history(
    job_id: Id,
    _subject: ReadingJob,
    session: ReaderDep,
    points: Annotated[int, Query(ge=1, le=2000)] = 300,
) -> HistoryView:
    """Serve the latency of the network over trials and time, and the trials by task."""
    return history.read_history(session, job_id, n_points=points)


@router.get("/jobs/{job_id}/failures", response_model=Page[FailureView], responses=_ONE)
def list_failures(job_id: Id, _subject: ReadingJob, session: ReaderDep) -> Page[FailureView]:
    """List how trials failed, the most frequent way first."""
    jobs.get_job(session, job_id)
    return Page(history.read_failures(session, job_id))


@router.get(
    "/jobs/{job_id}/recording",
    response_class=Response,
    responses={200: {"content": {"application/gzip": {}}}, **problems(404, 409)},
)
def read_recording(job_id: Id, _subject: ReadingJob, session: ReaderDep) -> Response:
    """Serve the curves of a job's tasks, for `tuner replay`."""
    job = jobs.get_job(session, job_id)
    weighted = tasks.tasks_of_job(session, job)
    if not weighted:
        state_now = job_states.state_of(session, job_id)
        raise Problem(
            "wrong-state",
            f"job {job_id} is {state_now}, and its network is not split into tasks yet",
            advice="Wait until its table has tasks.",
        )
    (summary,) = job_queries.summaries(session, [job])
    recording = recordings.record(session, summary.network or summary.name, weighted)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.jsonl.gz"
        recordings.write(recording, path)
        content = path.read_bytes()
    name = f'attachment; filename="job-{job_id}.jsonl.gz"'
    return Response(content, media_type="application/gzip", headers={"content-disposition": name})
