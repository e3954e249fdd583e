"""Admission of an upload before its body is received."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from api.app_state import state_of
from api.auth import Subject
from api.disk import check_disk
from api.limits import body_limit


@asynccontextmanager
async def receiving(request: Request, subject: Subject) -> AsyncIterator[int]:
    """Admit an upload before its body is received; yield the length that it announced, or 0.

    Raises:
        Problem: If the token sends too many at once, or too little disk space would be left after
            this and all others that are arriving.
    """
    state = state_of(request)
    length = request.headers.get("content-length", "")
    announced = int(length[:20]) if length.isdecimal() else 0
    # A length that is not announced may be any.
    limit = body_limit(request.url.path, state.settings.max_upload_bytes)
    with state.incoming.taken(subject.name, announced if length else limit):
        await run_in_threadpool(check_disk, state.settings, state.incoming.n_bytes)
        yield announced
