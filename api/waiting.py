"""Requests that wait for a job or a build, without a thread or a connection to the database."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Annotated, Any

from fastapi import Query, Request
from sqlalchemy.orm import Session
from starlette.requests import ClientDisconnect

from api.app_state import state_of
from api.dependencies import reader_of_job
from api.events import CHECK_INTERVAL_SECS, Channel
from api.load.fair_semaphore import SENDER, Peer

MAX_WAIT_SECS = 60.0
Wait = Annotated[
    float,
    Query(
        ge=0,
        le=MAX_WAIT_SECS,
        allow_inf_nan=False,
        description="Seconds to wait for the end of what is read; the answer comes at the end, or "
        "after this time with the state then.",
    ),
]
#: Key of the seconds that a request waited for news, in its scope.
WAITED = "tuner.waited"
# Events after which something may have ended.
_NEWS = (b"\nevent: state\n", b"\nevent: build\n")


async def wait_until(
    request: Request, job_id: int, secs: float, is_over: Callable[[Session], bool]
) -> None:
    """Wait until something about a job is over, or for some seconds.

    Events of the job, which one reader reads for all, say when to look again.

    Args:
        secs: Time to wait; 0 does not wait.
        is_over: Looks whether it is over.

    Raises:
        NoSuchRow: If the job does not exist.
        Problem: If the client has too many streams, or its token is no longer valid.
        ClientDisconnect: If the client left.
    """
    if not secs:
        return
    state, sender = state_of(request), SENDER.get()
    client = sender.client
    sender.peer.part()
    state.streams.check(client)
    channel = await state.hub.open(job_id)
    try:
        with state.streams.taken(client), suppress(TimeoutError):
            async with asyncio.timeout(secs):
                while True:
                    # Before the look, so that what ends during it is not missed.
                    sequence = channel.last
                    if await state.reads.run(is_over):
                        return
                    with uncounted(request.scope):
                        await _until_news(request, job_id, channel, sequence)
    finally:
        state.hub.leave(job_id, channel)


@contextmanager
def uncounted(scope: MutableMapping[str, Any]) -> Iterator[None]:
    """Leave the time of the block out of the duration of a request."""
    started = time.perf_counter()
    try:
        yield
    finally:
        scope[WAITED] = scope.get(WAITED, 0.0) + time.perf_counter() - started


async def _until_news(request: Request, job_id: int, channel: Channel, sequence: int) -> None:
    """Wait for news of a job; a token that is revoked ends it.

    Raises:
        TimeoutError: If the job was deleted or the process is about to end.
        Problem: If the token of the request is no longer valid.
        ClientDisconnect: If the client left.
    """
    hub = state_of(request).hub
    while True:
        limit = asyncio.timeout(CHECK_INTERVAL_SECS)
        try:
            async with limit:
                return await _while_there(
                    SENDER.get().peer, hub.until_news(channel, sequence, _NEWS)
                )
        except TimeoutError:
            if not limit.expired():
                raise
        await reader_of_job(request, job_id)


async def _while_there(peer: Peer, news: Coroutine[Any, Any, None]) -> None:
    """Wait for news until the client leaves, or it would hold its place among the streams.

    Raises:
        ClientDisconnect: If the client left.
    """
    waiting = asyncio.ensure_future(news)
    peer.wait_by(waiting)
    try:
        await asyncio.wait([waiting])
    finally:
        peer.wait_by(None)
        waiting.cancel()
    if waiting.cancelled():
        raise ClientDisconnect
    waiting.result()
