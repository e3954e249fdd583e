"""Lists of jobs, single jobs, and their control."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from sqlalchemy.orm import Session

from api.clients import access
from api.clients.auth import Subject
from api.dependencies import (
    Administering,
    ChangingJob,
    ReaderDep,
    Reading,
    ReadingJob,
    StateDep,
    WriterDep,
)
from api.documents import pagination, schemas
from api.documents.caching import TableCache
from api.documents.openapi import problems
from api.documents.schemas import Id, links_of
from api.errors import Problem
from api.routes import PREFIX
from api.waiting import Wait, wait_until
from records import jobs, labels
from records.models import Job, JobState
from records.service import submissions
from records.service.owners import audit
from records.service.owners.access import check_visible
from records.tuning import attempts, job_states
from tuner.queries import comparison
from tuner.queries import jobs as job_queries
from tuner.queries.catalogue import builds_of, webhooks_of
from tuner.queries.history import read_failures
from tuner.queries.jobs import JobOrder
from tuner.schemas import JobComparison, JobDetails, JobSummary, Page

router = APIRouter(prefix=PREFIX, tags=["jobs"])
_ACTIVE: tuple[JobState, ...] = ("queued", "running")
_UNFINISHED: tuple[JobState, ...] = (*_ACTIVE, "paused")
_ONE = problems(404)
_CHANGE = problems(404, 409)


@router.get("/jobs", response_model=Page[JobSummary])
def list_jobs(  # noqa: PLR0913, PLR0917  a parameter for each field of the query
    subject: Reading,
    session: ReaderDep,
    state: Annotated[list[JobState], Query(max_length=6)] = [],  # noqa: B006  FastAPI copies it
    q: Annotated[schemas.Text, Query(max_length=200, description="Part of the name.")] = "",
    tag: Annotated[
        list[schemas.Text], Query(max_length=20, description="Tags of the jobs, all of them.")
    ] = [],  # noqa: B006  likewise
    sort: JobOrder = "-created",
    cursor: schemas.Cursor = None,
    limit: schemas.Limit = 50,
) -> Page[JobSummary]:
    """List jobs, a page at a time."""
    rows = job_queries.list_jobs(
        session,
        states=state,
        text=q,
        tags=tag,
        sort=sort,
        after=pagination.job_after(cursor, sort),
        limit=limit + 1,
        viewer=subject.viewer,
    )
    shown, more = pagination.cut(rows, limit)
    return Page(shown, pagination.after_job(shown[-1], sort) if more else None)


@router.get("/jobs/{job_id}", response_model=JobDetails, responses=_ONE)
async def read_job(
    job_id: Id, request: Request, _subject: ReadingJob, state: StateDep, wait: Wait = 0.0
) -> JobDetails:
    """Serve a job with its forecast, failures, builds and webhooks; wait until it is not active."""
    await wait_until(
        request, job_id, wait, lambda session: job_states.state_of(session, job_id) not in _ACTIVE
    )
    return await state.reads.run(_details, state.tables, job_id)


@router.get("/jobs/{job_id}/compare/{other_id}", response_model=JobComparison, responses=_ONE)
def compare_jobs(
    job_id: Id, other_id: Id, subject: ReadingJob, session: ReaderDep
) -> JobComparison:
    """Compare two jobs workload by workload, by what each of them measured."""
    check_visible(session, subject.viewer, other_id)
    return comparison.compare_jobs(session, job_id, other_id)


def _details(session: Session, tables: TableCache, job_id: int) -> JobDetails:
    view = tables.view(session, job_id)
    return JobDetails(
        job=view.job,
        split=view.split,
        outlook=view.outlook,
        last_pick=view.last_pick,
        untuned_latency_secs=view.untuned_latency_secs,
        failures=read_failures(session, job_id),
        builds=builds_of(session, job_id),
        webhooks=webhooks_of(session, job_id),
        links=links_of(job_id),
    )


@router.patch("/jobs/{job_id}", response_model=JobSummary, responses=_ONE)
def edit_labels(
    job_id: Id, body: schemas.LabelsIn, subject: ChangingJob, session: WriterDep, state: StateDep
) -> JobSummary:
    """Replace the tags of a job, its note, or both; what is left out stays."""
    jobs.get_job(session, job_id)
    labels.edit(session, job_id, tags=body.tags, note=body.note)
    return _changed(session, state, subject, job_id, "labels", body)


@router.post("/jobs/{job_id}/cancel", response_model=JobSummary, responses=_CHANGE)
def cancel_job(job_id: Id, subject: ChangingJob, session: WriterDep, state: StateDep) -> JobSummary:
    """Stop a job after its running rounds; its measurements stay."""
    _stop(session, job_id, "cancelled")
    return _changed(session, state, subject, job_id, "cancel")


@router.post("/jobs/{job_id}/pause", response_model=JobSummary, responses=_CHANGE)
def pause_job(job_id: Id, subject: ChangingJob, session: WriterDep, state: StateDep) -> JobSummary:
    """Pause a job after its running rounds."""
    _stop(session, job_id, "paused")
    return _changed(session, state, subject, job_id, "pause")


@router.post("/jobs/{job_id}/resume", response_model=JobSummary, responses=_CHANGE)
def resume_job(job_id: Id, subject: ChangingJob, session: WriterDep, state: StateDep) -> JobSummary:
    """Resume a job that is paused, cancelled or failed."""
    job = jobs.get_job(session, job_id)
    _check_from_service(job, "resumed", "Run tuner tune with the same network to resume it.")
    # An active job may have been resumed by a request whose answer was lost.
    with access.enforced(session, subject, state.settings):
        is_admin = subject.viewer.is_admin
        if job.state not in _ACTIVE and not submissions.resume(
            session, job_id, by_operator=is_admin
        ):
            advice = "Raise its budget if it is done."
            if job.quarantined:
                advice = "It is quarantined: an administrator releases it."
            raise _wrong_state(session, job, "resumed", advice)
    return _changed(session, state, subject, job_id, "resume")


@router.post("/jobs/{job_id}/release", response_model=JobSummary, responses=_CHANGE)
def release_job(
    job_id: Id, subject: Administering, session: WriterDep, state: StateDep
) -> JobSummary:
    """Queue a quarantined job, and its quarantined builds, again."""
    job = jobs.get_job(session, job_id)
    if not attempts.release(session, job_id):
        raise _wrong_state(session, job, "released", "Neither it nor a build of it is quarantined.")
    return _changed(session, state, subject, job_id, "release")


@router.post("/jobs/{job_id}/budget", response_model=JobSummary, responses=_CHANGE)
def raise_budget(
    job_id: Id,
    body: schemas.BudgetIn,
    subject: ChangingJob,
    session: WriterDep,
    state: StateDep,
) -> JobSummary:
    """Raise the limits of a job; smaller ones change nothing. A job that is done is resumed."""
    if body.trials is None and body.seconds is None:
        raise Problem("invalid", "give trials, seconds, or both")
    before = _limits(jobs.get_job(session, job_id))
    with access.enforced(session, subject, state.settings):
        job = jobs.raise_budget(session, job_id, trials=body.trials, secs=body.seconds)
        if _limits(job) != before and job.submission:
            jobs.set_state(session, job_id, "queued", only_from=("done",))
    return _changed(session, state, subject, job_id, "budget", body)


@router.post("/jobs/{job_id}/priority", response_model=JobSummary, responses=_ONE)
def set_priority(
    job_id: Id,
    body: schemas.PriorityIn,
    subject: ChangingJob,
    session: WriterDep,
    state: StateDep,
) -> JobSummary:
    """Change the share of device time of a job."""
    jobs.get_job(session, job_id)
    access.check_priority(subject, body.priority, state.settings)
    jobs.set_priority(session, job_id, body.priority)
    return _changed(session, state, subject, job_id, "priority", body)


@router.delete("/jobs/{job_id}", status_code=204, responses=_CHANGE)
def delete_job(job_id: Id, subject: ChangingJob, session: WriterDep, state: StateDep) -> None:
    """Delete a job that is not active; its measurements stay."""
    job = jobs.get_job(session, job_id)
    if not submissions.hide(session, job_id):
        raise _wrong_state(session, job, "deleted", "Cancel it first.")
    audit.log_action(session, subject.name, subject.address, "delete", job_id)
    state.tables.forget(job_id)


def _stop(session: Session, job_id: int, to: Literal["cancelled", "paused"]) -> None:
    job = jobs.get_job(session, job_id)
    if job.state != to and not jobs.set_state(session, job_id, to, only_from=_UNFINISHED):
        raise _wrong_state(session, job, to, "It has ended already.")


def _changed(
    session: Session,
    state: StateDep,
    subject: Subject,
    job_id: int,
    action: str,
    body: schemas.Body | None = None,
) -> JobSummary:
    detail = {} if body is None else body.model_dump(exclude_none=True)
    audit.log_action(session, subject.name, subject.address, action, job_id, detail)
    state.tables.forget(job_id)
    job = jobs.get_job(session, job_id)
    session.refresh(job)
    (summary,) = job_queries.summaries(session, [job])
    return summary


def _check_from_service(job: Job, done: str, advice: str) -> None:
    if not job.submission:
        raise Problem(
            "wrong-state",
            f"job {job.id} belongs to a command line and cannot be {done} here",
            advice=advice,
        )


def _wrong_state(session: Session, job: Job, done: str, advice: str) -> Problem:
    state = job_states.state_of(session, job.id)
    detail = f"job {job.id} is {state} and cannot be {done}"
    return Problem("wrong-state", detail, advice=advice)


def _limits(job: Job) -> tuple[int | None, float | None]:
    return job.budget_trials, job.budget_secs
