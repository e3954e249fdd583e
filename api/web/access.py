"""Access to pages: like :mod:`api.dependencies`, and the page can show the subject."""

from collections.abc import Awaitable, Callable
from typing import Annotated, cast

from fastapi import Depends, Request

from api.auth import Subject
from api.dependencies import require


def seen_by(scope: str) -> Callable[[Request], Awaitable[Subject]]:
    """Return the dependency that admits subjects with a scope and keeps them for the page."""
    checked = require(scope)

    async def subject(request: Request) -> Subject:
        request.state.subject = await checked(request)
        return cast("Subject", request.state.subject)

    return subject


Reader = Annotated[Subject, Depends(seen_by("read"))]
Submitter = Annotated[Subject, Depends(seen_by("submit"))]
Admin = Annotated[Subject, Depends(seen_by("admin"))]
