"""Who looks at a page: like :mod:`api.dependencies`, and the page learns of it too."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request

from api.auth import Subject
from api.dependencies import require


def seen_by(scope: str) -> Callable[[Request], Awaitable[Subject]]:
    """Return the dependency that lets those pass who have a scope, and tells the page who."""
    checked = require(scope)

    async def subject(request: Request) -> Subject:
        found = await checked(request)
        request.state.subject = found
        return found

    return subject


Reader = Annotated[Subject, Depends(seen_by("read"))]
Submitter = Annotated[Subject, Depends(seen_by("submit"))]
Admin = Annotated[Subject, Depends(seen_by("admin"))]
