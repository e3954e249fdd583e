"""The form for a new job on the page of jobs."""

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy.orm import Session
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException

from api.dependencies import StateDep
from api.errors import as_problem
from api.uploads.submission import submit_form
from api.web import access
from api.web.errors import message_of
from api.web.forms.sent import Form
from api.web.pages.job_list import Filter, job_list_page
from records.errors import QuotaExceeded
from tuner.errors import RequestError

router = APIRouter(include_in_schema=False)


@router.post("/jobs")
async def submit_job(request: Request, state: StateDep, subject: access.Submitter) -> Response:
    """Submit a job and redirect to its page, or show the form again with its errors."""
    try:
        job_id, _ = await submit_form(request, subject)
    except (HTTPException, RequestValidationError, RequestError, QuotaExceeded) as error:
        return await state.reads.run(_again, request, error)
    return RedirectResponse(f"/jobs/{job_id}", 303)


def _again(session: Session, request: Request, error: Exception) -> HTMLResponse:
    status, message = message_of(error)
    sent = _sent(request)
    errors = as_problem(error).more.get("errors", ())
    wrong = tuple(field_error["field"].partition(".")[0] for field_error in errors)
    form = Form(sent, wrong, open=True)
    return job_list_page(request, session, Filter(), form=form, error=message, status=status)


def _sent(request: Request) -> dict[str, list[str]]:
    """Return the submitted texts, to show them again; none if the form cannot be read."""
    sent: dict[str, list[str]] = {}
    form: FormData = getattr(request.state, "form", FormData())
    for name, value in form.multi_items():
        if isinstance(value, str):
            sent.setdefault(name, []).append(value)
    return sent
