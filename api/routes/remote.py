"""Calls for the devices that measure over HTTPS: their processes lease, run and answer them."""

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import FileResponse
from pydantic import Field
from sqlalchemy.orm import Session

from api.dependencies import Serving, StateDep, WriterDep
from api.documents.openapi import problems
from api.documents.schemas import Body, Text
from api.errors import Problem
from api.load.downloads import Download
from api.load.fair_semaphore import SENDER
from api.routes import REMOTE
from api.waiting import uncounted
from api.waiting_calls import LOOK_INTERVAL_SECS
from records.service import remote_devices
from records.service.owners import audit
from records.service.owners.tokens import BUILD, MEASURE
from tuner.executors.remote import wire
from tuner.schemas import LeasedCall, LeasedCalls

router = APIRouter(prefix=REMOTE, tags=["remote devices"])
_MAX_CALLS = 64
# A process may have calls of an earlier coordinator, too.
_MAX_KNOWN = 1024
Name = Annotated[Text, Field(min_length=3, max_length=200, pattern=r"^[^/@\s]+/[^/@\s]+$")]
Key = Annotated[Text, Field(min_length=16, max_length=64)]


class DeviceIn(Body):
    """A process that measures on a device.

    Attributes:
        name: Name of the device, ``HOST/DEVICE``.
        key: Random text of the process.
    """

    name: Name
    key: Key


class RegistrationIn(DeviceIn):
    """A process that starts.

    Attributes:
        release: Release of its tuner.
        n_builders: Builds that it does at a time; 0 for a device, which measures.
    """

    release: Annotated[Text, Field(max_length=300)]
    n_builders: Annotated[int, Field(ge=0, le=1024)] = 0


class LeaseIn(DeviceIn):
    """A process with room for calls; it waits for some seconds while there are none.

    ``known`` are calls that it has and has not answered.
    """

    known: Annotated[list[Text], Field(max_length=_MAX_KNOWN)] = Field(default_factory=list)
    limit: Annotated[int, Field(ge=1, le=_MAX_CALLS)] = 1
    wait: Annotated[float, Field(ge=0, le=20, allow_inf_nan=False)] = 0.0


class AnswersIn(DeviceIn):
    """Answers to leased calls in Base64; none as a sign of life.

    Attributes:
        answers: Answers by the names of the calls.
        leaves: True for the last request of a process.
    """

    answers: Annotated[dict[Text, str], Field(max_length=_MAX_CALLS)] = Field(default_factory=dict)
    leaves: bool = False


@router.post("/register", status_code=204, responses=problems(409))
def register(body: RegistrationIn, subject: Serving, session: WriterDep) -> None:
    """Register the process of a device or of builders; it replaces one of the same token."""
    scope = BUILD if body.n_builders else MEASURE
    if not subject.allows(scope):
        raise Problem("forbidden", f"token {subject.name!r} lacks the scope {scope!r}")
    release = wire.release(builds=body.n_builders > 0)
    if body.release != release:
        raise Problem("invalid", f"the machine has release {body.release}, the service {release}")
    remote_devices.register(session, body.name, subject.name, body.key, body.n_builders)
    detail = {"name": body.name}
    audit.log_action(session, subject.name, subject.address, "register-device", detail=detail)


@router.post("/lease", response_model=LeasedCalls, responses=problems(404, 409))
async def lease(body: LeaseIn, request: Request, _subject: Serving, state: StateDep) -> LeasedCalls:
    """Lease calls to a process; those that it does not know of come again."""
    until = time.monotonic() + body.wait
    with state.streams.taken(SENDER.get().client), uncounted(request.scope):
        while True:
            has_calls = await state.waiting_calls.has(body.name)
            if has_calls or time.monotonic() >= until or state.hub.is_closing:
                break
            await asyncio.sleep(LOOK_INTERVAL_SECS)
    return await state.writes.run(_lease, body)


def _lease(session: Session, body: LeaseIn) -> LeasedCalls:
    calls = remote_devices.lease(session, body.name, body.key, body.limit, body.known)
    return LeasedCalls(
        items=[
            LeasedCall(
                id=call.id,
                function=call.function,
                arguments=wire.text_of(call.arguments),
                files=call.files,
                timeout_secs=call.timeout_secs,
            )
            for call in calls
        ]
    )


@router.post("/answers", status_code=204, responses=problems(404, 409))
def store_answers(body: AnswersIn, _subject: Serving, session: WriterDep) -> None:
    """Store answers, each once, or note that a process lives or leaves."""
    try:
        answers = {name: wire.bytes_of(text) for name, text in body.answers.items()}
    except ValueError as error:
        raise Problem("invalid", f"an answer is not Base64: {error}") from error
    remote_devices.store_answers(session, body.name, body.key, answers)
    if body.leaves:
        remote_devices.leave(session, body.name, body.key)


@router.get(
    "/files/{digest}",
    response_class=FileResponse,
    responses={200: {"content": {"application/octet-stream": {}}}, **problems(404)},
)
def download_file(
    digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$")], _subject: Serving, state: StateDep
) -> FileResponse:
    """Download a file that a leased call names."""
    path = state.settings.data_dir / wire.FOLDER / digest
    if not path.is_file():
        raise Problem("not-found", "no call needs this file any more")
    return Download(path, state.streams, media_type="application/octet-stream")
