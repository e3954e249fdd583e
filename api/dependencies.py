"""What routes and pages ask for: settings, sessions, and who it is that asks."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from api.app_state import State, state_of
from api.auth import ANONYMOUS, Known, Subject, address_of, secret_of
from api.errors import Problem
from api.settings import ApiSettings
from records.tokens import SCOPES

_CHALLENGE = {"www-authenticate": 'Bearer realm="subgraph-tuner"'}


async def _state(request: Request) -> State:
    return state_of(request)


async def _settings(request: Request) -> ApiSettings:
    return state_of(request).settings


def _reader(request: Request) -> Iterator[Session]:
    with state_of(request).readers() as session:
        yield session


def _writer(request: Request) -> Iterator[Session]:
    with state_of(request).sessions.begin() as session:
        yield session


SettingsDep = Annotated[ApiSettings, Depends(_settings)]
# Closed before the answer is sent: who reads it finds what was written.
ReaderDep = Annotated[Session, Depends(_reader, scope="function")]
WriterDep = Annotated[Session, Depends(_writer, scope="function")]


def require(scope: str) -> Callable[[Request], Awaitable[Subject]]:
    """Return the dependency that lets only those pass who may do what a scope is for."""

    async def subject(request: Request) -> Subject:
        found = await identify(request)
        if not found.allows(scope):
            raise Problem(
                "forbidden", f"this needs the scope {scope}, and {found.name} has not got it"
            )
        return found

    return subject


async def identify(request: Request) -> Subject:
    """Return who asks.

    Raises:
        Problem: If a token is needed and there is none, or the one that was sent is not good.
    """
    state = state_of(request)
    secret, from_cookie = secret_of(request)
    token = await _find(state, secret)
    needed = state.settings.needs_tokens
    if token is None and (needed or (secret is not None and not from_cookie)):
        said = "the token is unknown, expired or revoked" if secret else "no token was sent"
        raise Problem("unauthenticated", said, headers=_CHALLENGE)
    name, scopes = (ANONYMOUS, SCOPES) if token is None else (token.name, token.scopes)
    return Subject(name, scopes, address_of(request))


async def _find(state: State, secret: str | None) -> Known | None:
    return None if secret is None else await state.tokens.find(secret)


Reading = Annotated[Subject, Depends(require("read"))]
Submitting = Annotated[Subject, Depends(require("submit"))]
Administering = Annotated[Subject, Depends(require("admin"))]
StateDep = Annotated[State, Depends(_state)]
