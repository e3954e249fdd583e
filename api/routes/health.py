"""Probes of liveness and readiness, and metrics for Prometheus."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from api.clients.auth import Subject
from api.dependencies import StateDep, require
from api.documents.openapi import problems


class Ready(BaseModel):
    """The answer of a process that serves.

    Attributes:
        status: Always "ready".
        coordinator_progress_age_secs: Seconds since the main loop of the active worker was seen to
            run; null without one.
        worker_sandbox: Confinement of the processes of the active worker, "confined" if it is
            complete; null without one.
    """

    status: Literal["ready"] = "ready"
    coordinator_progress_age_secs: float | None
    worker_sandbox: str | None


router = APIRouter(tags=["health"])


@router.get("/healthz", responses=problems(500))
async def healthz() -> dict[Literal["status"], Literal["ok"]]:
    """Answer while the process is alive; requires no token."""
    return {"status": "ok"}


@router.get("/readyz", responses=problems(500, 503))
async def readyz(state: StateDep) -> Ready:
    """Answer while the database does; requires no token."""
    active = await state.readiness.check()
    return Ready(
        coordinator_progress_age_secs=active and active.progress_age_secs,
        worker_sandbox=active and active.sandbox,
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}}},
        **problems(401, 403, 421, 429, 500),
    },
)
async def metrics(
    state: StateDep, _subject: Annotated[Subject, Depends(require("read"))]
) -> Response:
    """Serve trials, jobs, queue, devices and requests in the text format of Prometheus."""
    async with state.reads.slots.slot():
        content = await run_in_threadpool(state.metrics.render)
    return Response(content, headers={"content-type": CONTENT_TYPE_LATEST})
