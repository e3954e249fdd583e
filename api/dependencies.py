"""Dependencies of routes and pages: settings, sessions, and the authenticated subject."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from api.app_state import State, state_of
from api.clients.auth import ANONYMOUS, SUBJECT, Subject, address_of, client_name, secret_of
from api.documents.schemas import Id
from api.errors import Problem
from api.load.fair_semaphore import SENDER
from api.settings import ApiSettings
from records.errors import NoSuchRow
from records.service.owners.tokens import BUILD, MEASURE, SCOPES

_CHALLENGE = {"www-authenticate": 'Bearer realm="subgraph-tuner"'}


async def _state(request: Request) -> State:
    return state_of(request)


async def _settings(request: Request) -> ApiSettings:
    return state_of(request).settings


async def _reader(request: Request) -> AsyncIterator[Session]:
    async with state_of(request).reads.session() as session:
        yield session


async def _writer(request: Request) -> AsyncIterator[Session]:
    async with state_of(request).writes.session() as session:
        yield session


SettingsDep = Annotated[ApiSettings, Depends(_settings)]
# Closed before the answer is sent, so that its reader finds what was written. Parameters of routes
# name the subject before the session: looking it up takes a slot of its own.
ReaderDep = Annotated[Session, Depends(_reader, scope="function")]
WriterDep = Annotated[Session, Depends(_writer, scope="function")]


def require(*scopes: str) -> Callable[[Request], Awaitable[Subject]]:
    """Return the dependency that admits only subjects with one of several scopes."""

    async def subject(request: Request) -> Subject:
        sender = await identify(request)
        if not any(sender.allows(scope) for scope in scopes):
            named = " or ".join(map(repr, scopes))
            raise Problem("forbidden", f"token {sender.name!r} lacks the scope {named}")
        return sender

    return subject


async def identify(request: Request) -> Subject:
    """Return the subject of a request.

    Raises:
        Problem: If a token is required and missing, or the one sent is not valid.
    """
    state = state_of(request)
    secret, from_cookie = secret_of(request)
    token = None if secret is None else await state.tokens.find(secret)
    # A stale cookie is ignored where no token is required; a bearer token never is.
    has_bearer_token = secret is not None and not from_cookie
    if token is None and (state.settings.needs_tokens or has_bearer_token):
        detail = "the token is unknown, expired or revoked" if secret else "no token was sent"
        raise Problem("unauthenticated", detail, headers=_CHALLENGE)
    request.scope[SUBJECT] = ANONYMOUS if token is None else token.name
    if token is None:
        return Subject(ANONYMOUS, SCOPES, address_of(request))
    SENDER.get().client = client_name(request, token.name)
    return Subject(token.name, token.scopes, address_of(request), token.project)


_require_read, _require_submit = require("read"), require("submit")


async def check_seen(request: Request, subject: Subject, job_id: int) -> None:
    """Check that a subject may read a job.

    Raises:
        NoSuchRow: If it may not, as if the job did not exist.
    """
    viewer = subject.viewer
    if not viewer.is_admin and not viewer.sees(await state_of(request).ownerships.of(job_id)):
        raise NoSuchRow(f"no job {job_id}")


async def reader_of_job(request: Request, job_id: Id) -> Subject:
    """Admit subjects with the scope read that may read the job of the path."""
    subject = await _require_read(request)
    await check_seen(request, subject, job_id)
    return subject


async def owner_of_job(request: Request, job_id: Id) -> Subject:
    """Admit subjects with the scope submit that may change the job of the path."""
    subject = await _require_submit(request)
    await check_seen(request, subject, job_id)
    if not subject.viewer.is_admin:
        job = await state_of(request).ownerships.of(job_id)
        if not subject.viewer.changes(job):
            raise Problem(
                "forbidden",
                f"job {job_id} belongs to {job.owner or 'the administrators'!r}",
                advice="Use the token of its owner, or one with the scope admin.",
            )
    return subject


Reading = Annotated[Subject, Depends(require("read"))]
Submitting = Annotated[Subject, Depends(require("submit"))]
#: Of routes with the number of a job in their path.
ReadingJob = Annotated[Subject, Depends(reader_of_job)]
ChangingJob = Annotated[Subject, Depends(owner_of_job)]
Administering = Annotated[Subject, Depends(require("admin"))]
#: Of GPUs that measure packs.
Measuring = Annotated[Subject, Depends(require(MEASURE))]
#: Of machines that measure or build.
Serving = Annotated[Subject, Depends(require(MEASURE, BUILD))]
StateDep = Annotated[State, Depends(_state)]
