"""The event stream of a job."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from api.app_state import State
from api.dependencies import ReadingJob, StateDep, identify
from api.documents.openapi import problems
from api.documents.schemas import MAX_ID, Id
from api.errors import Problem, respond
from api.events import Channel
from api.load.fair_semaphore import SENDER
from api.routes import PREFIX
from api.waiting import uncounted

router = APIRouter(prefix=PREFIX, tags=["jobs"])
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@router.get(
    "/jobs/{job_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}, **problems(404)},
)
async def stream_events(
    job_id: Id,
    request: Request,
    _subject: ReadingJob,
    state: StateDep,
    after: Annotated[
        int, Query(ge=0, le=MAX_ID, description="Number of the last event you have.")
    ] = 0,
    last_event_id: Annotated[int | None, Header(ge=0, le=MAX_ID)] = None,
) -> StreamingResponse:
    """Stream the events of a job after the last one you have.

    Sequence numbers have no gaps. The stream stays open, because a job that is done may be
    resumed.
    """
    sequence = after if last_event_id is None else last_event_id
    state.streams.check(SENDER.get().client)
    channel = await state.hub.open(job_id)

    async def is_allowed() -> bool:
        try:
            return (await identify(request)).allows("read")
        except ClientDisconnect:
            return False
        except Problem as problem:
            return problem.slug != "unauthenticated"
        except SQLAlchemyError:
            # The stream itself waits for the database.
            return True

    events = state.hub.stream(job_id, channel, sequence, is_allowed)
    return _Stream(state, job_id, channel, events)


class _Stream(StreamingResponse):
    """A stream that always leaves its channel, even if it never started."""

    def __init__(
        self, state: State, job_id: int, channel: Channel, events: AsyncIterator[bytes]
    ) -> None:
        super().__init__(events, headers=_HEADERS, media_type="text/event-stream")
        self._state, self._job_id, self._channel = state, job_id, channel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client leaves."""
        try:
            with (
                self._state.streams.taken(SENDER.get().client),
                self._state.metrics.event_readers.track_inprogress(),
                uncounted(scope),
            ):
                await super().__call__(scope, receive, send)
        except Problem as problem:
            await respond(problem)(scope, receive, send)
        finally:
            self._state.hub.leave(self._job_id, self._channel)
