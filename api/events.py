"""Event streams: one reader of the database for everybody who watches.

A subscriber keeps a cursor and nothing else. Events that come in are encoded once, kept for a
while, and shared by those who are up to date; who is behind reads pages of the database, which
are shared too. Numbers without gaps make sure that nobody misses an event or gets it twice.
"""

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from api.single_flight import SingleFlight
from records import events, jobs
from records.models import Event

_POLL_SECS = 0.3
_RETRY_SECS = 1.0
_HEARTBEAT_SECS = 15.0
_PAGE = 500
_MOST_KEPT = 2000
_MOST_PAGES = 32
_HELLO = b"retry: 2000\n\n"
_HEARTBEAT = b": heartbeat\n\n"
_logger = logging.getLogger("api.events")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Batch:
    """Events that follow each other, encoded; ``first`` and ``last`` are their numbers."""

    first: int
    last: int
    parts: tuple[bytes, ...]
    joined: bytes

    def after(self, sequence: int) -> bytes:
        """Return what follows a number; the shared bytes themselves if that is all."""
        skipped = sequence + 1 - self.first
        return self.joined if skipped <= 0 else b"".join(self.parts[skipped:])


@dataclass
class Channel:
    """A job that is watched, up to its event ``last``; the newest batches are kept."""

    last: int
    n_readers: int = 0
    batches: deque[Batch] = field(default_factory=deque)
    n_kept: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False

    def add(self, batch: Batch) -> None:
        """Append a batch, drop the oldest if there are many, and wake whoever waits."""
        self.batches.append(batch)
        self.n_kept += len(batch.parts)
        self.last = batch.last
        while self.n_kept > _MOST_KEPT and len(self.batches) > 1:
            self.n_kept -= len(self.batches.popleft().parts)
        self.wake()

    def wake(self) -> None:
        """Wake everybody who waits for news."""
        self.news.set()
        self.news = asyncio.Event()

    def after(self, sequence: int) -> Batch | None:
        """Return the batch with the event that follows a number, if it is kept."""
        if not self.batches or sequence + 1 < self.batches[0].first:
            return None
        return next((batch for batch in self.batches if batch.last > sequence), None)


class Hub:
    """The event streams of one process."""

    def __init__(self, readers: sessionmaker[Session]) -> None:
        self._readers = readers
        self._channels: dict[int, Channel] = {}
        self._pages: dict[tuple[int, int], Batch] = {}
        self._flights: SingleFlight[Batch | None] = SingleFlight()
        # Threads of its own: requests that fill the common pool delay no event.
        self._threads = ThreadPoolExecutor(2, "events")
        self._poller: asyncio.Task[None] | None = None
        self._closing = False

    async def open(self, job_id: int) -> Channel:
        """Begin to watch a job; whoever opens it closes it.

        Raises:
            NoSuchRow: If there is no such job.
        """
        last = await self._run(self._last_of, job_id)
        channel = self._channels.setdefault(job_id, Channel(last))
        channel.n_readers += 1
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        return channel

    def leave(self, job_id: int, channel: Channel) -> None:
        """Stop to watch a job."""
        channel.n_readers -= 1
        if channel.n_readers == 0 and self._channels.get(job_id) is channel:
            del self._channels[job_id]
            for key in [key for key in self._pages if key[0] == job_id]:
                del self._pages[key]

    async def stream(
        self,
        job_id: int,
        channel: Channel,
        sequence: int,
        is_allowed: Callable[[], Awaitable[bool]],
    ) -> AsyncIterator[bytes]:
        """Yield the events of a job after a number, for as long as there may be more.

        Args:
            job_id: The job.
            channel: What ``open`` returned.
            sequence: The last event that the reader has.
            is_allowed: Asked now and then whether the reader may still read.
        """
        yield _HELLO
        loop = asyncio.get_running_loop()
        asked = loop.time()
        while not (channel.gone or self._closing):
            news = channel.news
            if channel.last > sequence:
                batch = channel.after(sequence) or await self._page(job_id, sequence)
                if batch is None:
                    await asyncio.sleep(_RETRY_SECS)
                    continue
                yield batch.after(sequence)
                sequence = batch.last
            elif not await _happens(news, _HEARTBEAT_SECS):
                yield _HEARTBEAT
            if loop.time() - asked > _HEARTBEAT_SECS:
                asked = loop.time()
                if not await is_allowed():
                    return

    async def close(self) -> None:
        """End every stream: the process stops."""
        self._closing = True
        for channel in self._channels.values():
            channel.wake()
        if self._poller is not None:
            self._poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poller
        self._threads.shutdown(wait=False)

    async def _poll(self) -> None:
        while self._channels:
            try:
                await self._look()
                await asyncio.sleep(_POLL_SECS)
            except SQLAlchemyError as error:
                _logger.warning("cannot read events: %s", type(error).__name__)
                await asyncio.sleep(_RETRY_SECS)

    async def _look(self) -> None:
        """See what is new for every job that is watched."""
        watched = dict(self._channels)
        found = await self._run(self._news, {key: each.last for key, each in watched.items()})
        for job_id, channel in watched.items():
            if found[job_id] is None:
                channel.gone = True
                channel.wake()
                if self._channels.get(job_id) is channel:
                    del self._channels[job_id]
            elif found[job_id]:
                channel.add(_batch(found[job_id] or []))

    async def _page(self, job_id: int, sequence: int) -> Batch | None:
        """Return events after a number out of the database; None if it does not answer."""
        key = (job_id, sequence)
        if key in self._pages:
            return self._pages[key]
        try:
            batch = await self._flights.join(key, partial(self._run, self._read, job_id, sequence))
        except SQLAlchemyError as error:
            _logger.warning("cannot read events: %s", type(error).__name__)
            return None
        if batch is not None and len(batch.parts) == _PAGE:
            if len(self._pages) >= _MOST_PAGES:
                del self._pages[next(iter(self._pages))]
            self._pages[key] = batch
        return batch

    async def _run(self, call: Callable[..., Answer], *args: object) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def _last_of(self, job_id: int) -> int:
        with self._readers() as session:
            return jobs.get_job(session, job_id).n_events

    def _news(self, last: dict[int, int]) -> dict[int, list[Event] | None]:
        """Return what is new for each job; None for one that is gone."""
        with self._readers() as session:
            found = events.last_events(session, list(last))
            return {
                job_id: None
                if job_id not in found
                else events.events_after(session, job_id, sequence)
                if found[job_id].n_events > sequence
                else []
                for job_id, sequence in last.items()
            }

    def _read(self, job_id: int, sequence: int) -> Batch | None:
        with self._readers() as session:
            found = events.events_after(session, job_id, sequence, _PAGE)
        return _batch(found) if found else None


def encode(event: Event) -> bytes:
    """Return an event as a stream has it."""
    told = {
        "sequence": event.sequence,
        "kind": event.kind,
        "created": event.created.isoformat(),
        "data": event.data,
    }
    text = json.dumps(told, separators=(",", ":"))
    return f"id: {event.sequence}\nevent: {event.kind}\ndata: {text}\n\n".encode()


def _batch(found: Sequence[Event]) -> Batch:
    parts = tuple(encode(event) for event in found)
    return Batch(found[0].sequence, found[-1].sequence, parts, b"".join(parts))


async def _happens(news: asyncio.Event, secs: float) -> bool:
    try:
        await asyncio.wait_for(news.wait(), secs)
    except TimeoutError:
        return False
    return True
