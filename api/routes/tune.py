"""Submission of networks."""

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from sqlalchemy.orm import Session

from api.dependencies import StateDep, Submitting
from api.documents.openapi import problems
from api.documents.schemas import links_of
from api.routes import PREFIX
from api.uploads.forms import body_schema
from api.uploads.submission import submit_form
from records import jobs
from tuner.queries import jobs as job_queries
from tuner.schemas import JobSummary, Submitted

router = APIRouter(prefix=PREFIX, tags=["jobs"])


@router.post(
    "/tune",
    response_model=Submitted,
    status_code=202,
    responses={
        200: {"model": Submitted, "description": "The job is done already"},
        **problems(408, 413, 415),
    },
    openapi_extra={"requestBody": body_schema()},
)
async def tune(
    request: Request,
    response: Response,
    subject: Submitting,
    state: StateDep,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> Submitted:
    """Tune a network, or several in one job.

    The same networks and options are the same job: the answer is that job, and it measures more
    only for a larger budget.
    """
    job_id, created = await submit_form(request, subject, idempotency_key)
    job = await state.reads.run(_summary, job_id)
    state.tables.forget(job_id)
    links = links_of(job_id)
    response.headers["location"] = links.self
    if job.state == "done":
        response.status_code = 200
    return Submitted(job=job, created=created, links=links)


def _summary(session: Session, job_id: int) -> JobSummary:
    (summary,) = job_queries.summaries(session, [jobs.get_job(session, job_id)])
    return summary
