"""Admission of an upload or import before its body is received."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from api.app_state import state_of
from api.clients.auth import Subject
from api.clients.limits import body_limit
from api.load.disk import check_disk


@asynccontextmanager
async def receiving(
    request: Request, subject: Subject, *, is_import: bool = False
) -> AsyncIterator[int]:
    """Admit an upload before its body is received; yield the length that it announced, or 0.

    Args:
        request: Request with an unread body.
        subject: Authenticated sender.
        is_import: True for a log of records, which is not copied to the folder of uploads.

    Raises:
        Problem: If the token sends too many at once, or too little disk space would be left after
            this and all others that are arriving.
    """
    state = state_of(request)
    length = request.headers.get("content-length", "")
    announced = int(length[:20]) if length.isdecimal() else 0
    # A length that is not announced may be any.
    limit = body_limit(request.url.path, state.settings.max_upload_bytes)
    n_bytes = announced if length else limit
    counted = (0, n_bytes) if is_import else (n_bytes, 0)
    with state.incoming.taken(subject.name, *counted):
        await run_in_threadpool(check_disk, state.settings, state.incoming)
        yield announced
