"""The forms of a job's page, which call the routes of the REST API."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi import Form as FormField
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import ValidationError
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException

from api.dependencies import ReaderDep, StateDep
from api.documents.schemas import BudgetIn, BuildIn, Id, LabelsIn, PriorityIn
from api.routes import jobs as routes
from api.routes import libraries
from api.web import access
from api.web.errors import Message, message_of
from api.web.pages.job_page import job_page
from api.web.rendering import render
from records import jobs
from records.errors import QuotaExceeded
from tuner.errors import RequestError
from tuner.queries import jobs as job_queries

router = APIRouter(include_in_schema=False)

Text = Annotated[str, FormField()]


class Change:
    """The context of a change of a job by a form."""

    def __init__(
        self, request: Request, state: StateDep, subject: access.JobOwner, job_id: Id
    ) -> None:
        self.request = request
        self.state = state
        self.subject = subject
        self.job_id = job_id

    async def by(
        self, route: Callable[..., object], body: object = None, then: str = ""
    ) -> Response:
        """Call a route and redirect to the page of the job, or show the error there.

        Args:
            route: Function of the job's number, a body if there is one, session, subject, state.
            body: Body of the request, from the form.
            then: Address to redirect to; empty for the page of the job.
        """
        kwargs: dict[str, Any] = {} if body is None else {"body": body}
        try:
            await self.state.writes.run(self._change, route, kwargs)
        except (HTTPException, RequestError, QuotaExceeded) as error:
            return await self.refuse(error)
        return RedirectResponse(then or f"/jobs/{self.job_id}", 303)

    async def refuse(self, error: Exception) -> HTMLResponse:
        """Show the page of the job with an error."""
        return await self.state.reads.run(self._page, *message_of(error))

    def _change(
        self, session: Session, route: Callable[..., object], kwargs: dict[str, Any]
    ) -> None:
        route(self.job_id, session=session, subject=self.subject, state=self.state, **kwargs)

    def _page(self, session: Session, status: int, message: Message) -> HTMLResponse:
        return job_page(self.request, session, self.job_id, error=message, status=status)


ChangeDep = Annotated[Change, Depends(Change)]


@router.post("/jobs/{job_id}/pause")
async def pause_job(change: ChangeDep) -> Response:
    """Pause a job after its running rounds."""
    return await change.by(routes.pause_job)


@router.post("/jobs/{job_id}/cancel")
async def cancel_job(change: ChangeDep) -> Response:
    """Stop a job after its running rounds."""
    return await change.by(routes.cancel_job)


@router.post("/jobs/{job_id}/resume")
async def resume_job(change: ChangeDep) -> Response:
    """Resume a job."""
    return await change.by(routes.resume_job)


@router.post("/jobs/{job_id}/release")
async def release_job(_subject: access.Admin, change: ChangeDep) -> Response:
    """Release a quarantined job and its builds."""
    return await change.by(routes.release_job)


@router.post("/jobs/{job_id}/budget")
async def raise_budget(change: ChangeDep, trials: Text = "", seconds: Text = "") -> Response:
    """Raise the limits of a job."""
    limits = {"trials": trials.strip(), "seconds": seconds.strip()}
    try:
        body = BudgetIn.model_validate({name: text for name, text in limits.items() if text})
    except ValidationError as error:
        return await change.refuse(RequestValidationError(error.errors()))
    return await change.by(routes.raise_budget, body)


@router.post("/jobs/{job_id}/priority")
async def set_priority(change: ChangeDep, priority: Text = "") -> Response:
    """Change the share of device time of a job."""
    try:
        body = PriorityIn.model_validate({"priority": priority.strip()})
    except ValidationError as error:
        return await change.refuse(RequestValidationError(error.errors()))
    return await change.by(routes.set_priority, body)


@router.post("/jobs/{job_id}/labels")
async def edit_labels(change: ChangeDep, tags: Text = "", note: Text = "") -> Response:
    """Replace the tags of a job and its note."""
    try:
        body = LabelsIn.model_validate({"tags": [tags], "note": note.strip().replace("\r\n", "\n")})
    except ValidationError as error:
        return await change.refuse(RequestValidationError(error.errors()))
    return await change.by(routes.edit_labels, body)


@router.post("/jobs/{job_id}/build")
async def build_library(
    change: ChangeDep, strict: Text = "", model_index: Text = "0", profile: Text = ""
) -> Response:
    """Request the library of a job's network, or its profile."""
    fields = {"strict": bool(strict), "model_index": model_index, "profile": bool(profile)}
    try:
        body = BuildIn.model_validate(fields)
    except ValidationError as error:
        return await change.refuse(RequestValidationError(error.errors()))
    return await change.by(libraries.request_build, body)


@router.get("/jobs/{job_id}/delete")
def confirm_delete(
    request: Request, _subject: access.JobOwner, session: ReaderDep, job_id: Id
) -> HTMLResponse:
    """Show the confirmation of a deletion."""
    (job,) = job_queries.summaries(session, [jobs.get_job(session, job_id)])
    return render(request, "delete.html", job=job, error=None)


@router.post("/jobs/{job_id}/delete")
async def delete_job(change: ChangeDep) -> Response:
    """Delete a job that is not active."""
    return await change.by(routes.delete_job, then="/")
