"""Access to pages: like :mod:`api.dependencies`, and the page can show the subject."""

from collections.abc import Awaitable, Callable
from typing import Annotated, cast

from fastapi import Depends, Request

from api.clients.auth import Subject
from api.dependencies import owner_of_job, reader_of_job, require


def seen_by(scope: str) -> Callable[[Request], Awaitable[Subject]]:
    """Return the dependency that admits subjects with a scope and keeps them for the page."""
    checked = require(scope)

    async def subject(request: Request) -> Subject:
        request.state.subject = await checked(request)
        return cast("Subject", request.state.subject)

    return subject


async def _reader_of_job(
    request: Request, subject: Annotated[Subject, Depends(reader_of_job)]
) -> Subject:
    request.state.subject = subject
    return subject


async def _owner_of_job(
    request: Request, subject: Annotated[Subject, Depends(owner_of_job)]
) -> Subject:
    request.state.subject = subject
    return subject


Reader = Annotated[Subject, Depends(seen_by("read"))]


def subject_of(request: Request) -> Subject:
    """Return the subject of a page that required one."""
    return cast("Subject", request.state.subject)


#: Of pages with the number of a job in their path.
JobReader = Annotated[Subject, Depends(_reader_of_job)]
JobOwner = Annotated[Subject, Depends(_owner_of_job)]
Submitter = Annotated[Subject, Depends(seen_by("submit"))]
Admin = Annotated[Subject, Depends(seen_by("admin"))]
