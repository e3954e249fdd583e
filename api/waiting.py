"""Requests that wait for a job or a build, without a thread or a connection to the database."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Query
from sqlalchemy.orm import Session
from starlette.requests import ClientDisconnect

from api.app_state import State
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
# Events after which something may have ended.
_NEWS = (b"\nevent: state\n", b"\nevent: build\n")


async def wait_until(
    state: State, job_id: int, secs: float, is_over: Callable[[Session], bool]
) -> None:
    """Wait until something about a job is over, or for some seconds.

    Events of the job, which one reader reads for all, say when to look again.

    Args:
        state: State of the process.
        job_id: Number of the job.
        secs: Time to wait; 0 does not wait.
        is_over: Looks whether it is over.

    Raises:
        NoSuchRow: If the job does not exist.
        Problem: If the client has too many streams.
        ClientDisconnect: If the client left.
    """
    if not secs:
        return
    client, peer = SENDER.get().client, SENDER.get().peer
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
                    await _while_there(peer, state.hub.until_news(channel, sequence, _NEWS))
    finally:
        state.hub.leave(job_id, channel)


async def _while_there(peer: Peer, news: Coroutine[Any, Any, None]) -> None:
    """Wait for news until the client leaves, or it would hold its place among the streams.

    Raises:
        ClientDisconnect: If the client left.
    """
    waiting = asyncio.ensure_future(news)
    peer.wait_by(waiting)
    try:
        if peer.is_gone:
            waiting.cancel()
        await asyncio.wait([waiting])
    finally:
        peer.wait_by(None)
        waiting.cancel()
    if waiting.cancelled():
        raise ClientDisconnect
    waiting.result()
