"""Event streams: one reader of the database for all subscribers of a process.

A subscriber keeps a cursor only. New events are encoded once, kept for a while, and shared by
the subscribers that are up to date; those behind read pages of the database, which are shared
as well. Sequence numbers without gaps ensure that each subscriber gets every event once.
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

from api.documents.caching import SingleFlight
from api.errors import Problem
from api.load.capacity import N_EVENT_THREADS
from records import jobs
from records.models import Event
from records.tuning import events

_POLL_INTERVAL_SECS = 0.3
_RETRY_INTERVAL_SECS = 1.0
_HEARTBEAT_INTERVAL_SECS = 15.0
#: Interval between two looks at the token of a request that waits.
CHECK_INTERVAL_SECS = 5.0
_PAGE_SIZE = 500
_MAX_RECENT_EVENTS = 2000
_MAX_PAGES = 32
# Subscribers that send between two looks at the sockets; each takes some tenths of a millisecond.
_N_AT_ONCE = 16
_HELLO = b"retry: 2000\n\n"
_HEARTBEAT = b": heartbeat\n\n"
_logger = logging.getLogger("api.events")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Batch:
    """Consecutive events, encoded; ``first`` and ``last`` are sequence numbers."""

    first: int
    last: int
    parts: tuple[bytes, ...]
    joined: bytes

    def after(self, sequence: int) -> bytes:
        """Return the events after a number; all of them are the shared bytes themselves."""
        skipped = sequence + 1 - self.first
        return self.joined if skipped <= 0 else b"".join(self.parts[skipped:])


@dataclass
class Channel:
    """A watched job up to its event ``last``, with its newest batches."""

    last: int
    n_readers: int = 0
    batches: deque[Batch] = field(default_factory=deque)
    n_recent: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    is_deleted: bool = False

    def add(self, batch: Batch) -> None:
        """Append a batch, drop the oldest beyond the limit, and wake all subscribers."""
        self.batches.append(batch)
        self.n_recent += len(batch.parts)
        self.last = batch.last
        while self.n_recent > _MAX_RECENT_EVENTS and len(self.batches) > 1:
            self.n_recent -= len(self.batches.popleft().parts)
        self.wake()

    def wake(self) -> None:
        """Wake all subscribers."""
        self.news.set()
        self.news = asyncio.Event()

    def after(self, sequence: int) -> Batch | None:
        """Return the batch with the event after a number, unless it was dropped."""
        if not self.batches or sequence + 1 < self.batches[0].first:
            return None
        return next((batch for batch in self.batches if batch.last > sequence), None)


class Hub:
    """The event streams of one process."""

    def __init__(self, readers: sessionmaker[Session]) -> None:
        self._readers = readers
        self._channels: dict[int, Channel] = {}
        self._pages: dict[tuple[int, int], Batch] = {}
        self._reads: SingleFlight[Batch | None] = SingleFlight()
        self._turns = asyncio.Semaphore(_N_AT_ONCE)
        # Own threads, because requests can fill the common pool.
        self._threads = ThreadPoolExecutor(N_EVENT_THREADS, "events")
        self._poller: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def is_closing(self) -> bool:
        """True once this process is about to end."""
        return self._closing

    async def open(self, job_id: int) -> Channel:
        """Start to watch a job; the caller must call :meth:`leave`.

        Raises:
            NoSuchRow: If the job does not exist.
            Problem: If the hub is closed.
        """
        self._check_open()
        last = await self._run(self._last_of, job_id)
        self._check_open()
        channel = self._channels.setdefault(job_id, Channel(last))
        channel.n_readers += 1
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        return channel

    def _check_open(self) -> None:
        if self._closing:
            raise Problem("unavailable", "this process is about to end")

    def leave(self, job_id: int, channel: Channel) -> None:
        """Stop watching a job."""
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
        """Yield the events of a job after a number, until the job is deleted or the hub closes.

        Args:
            channel: Result of :meth:`open`.
            sequence: Number of the last event that the reader has.
            is_allowed: Called every few seconds; False ends the stream.
        """
        yield _HELLO
        loop = asyncio.get_running_loop()
        checked_at = sent_at = loop.time()
        while not (channel.is_deleted or self._closing):
            news = channel.news
            if channel.last > sequence:
                batch = channel.after(sequence) or await self._page(job_id, sequence)
                if batch is None:
                    await asyncio.sleep(_RETRY_INTERVAL_SECS)
                    continue
                async with self._turns:
                    await asyncio.sleep(0)
                yield batch.after(sequence)
                sequence, sent_at = batch.last, loop.time()
            elif not await _is_set_within(
                news, min(CHECK_INTERVAL_SECS, _HEARTBEAT_INTERVAL_SECS)
            ) and (loop.time() - sent_at >= _HEARTBEAT_INTERVAL_SECS):
                yield _HEARTBEAT
                sent_at = loop.time()
            if loop.time() - checked_at >= CHECK_INTERVAL_SECS:
                checked_at = loop.time()
                if not await is_allowed():
                    return

    async def until_news(self, channel: Channel, sequence: int, kinds: Sequence[bytes]) -> None:
        """Wait for an event after a number with one of some texts; or for the end of the job.

        Raises:
            TimeoutError: If the job was deleted or the hub closes.
        """
        while not (channel.is_deleted or self._closing):
            if channel.last > sequence:
                arrived = [batch.joined for batch in channel.batches if batch.last > sequence]
                if any(kind in joined for joined in arrived for kind in kinds):
                    return
                sequence = channel.last
            await channel.news.wait()
        raise TimeoutError

    async def close(self) -> None:
        """End all streams."""
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
                # Read the new events of all watched jobs.
                watched = dict(self._channels)
                last = {job_id: channel.last for job_id, channel in watched.items()}
                news = await self._run(self._news, last)
                for job_id, channel in watched.items():
                    new_events = news[job_id]
                    if new_events is None:
                        channel.is_deleted = True
                        channel.wake()
                        if self._channels.get(job_id) is channel:
                            del self._channels[job_id]
                    elif new_events:
                        channel.add(_batch(new_events))
                await asyncio.sleep(_POLL_INTERVAL_SECS)
            except SQLAlchemyError as error:
                _logger.warning("cannot read events: %s", type(error).__name__)
                await asyncio.sleep(_RETRY_INTERVAL_SECS)

    async def _page(self, job_id: int, sequence: int) -> Batch | None:
        """Read the events after a number from the database; None if it does not answer."""
        key = (job_id, sequence)
        if key in self._pages:
            return self._pages[key]
        try:
            batch = await self._reads.join(key, partial(self._run, self._read, job_id, sequence))
        except SQLAlchemyError as error:
            _logger.warning("cannot read events: %s", type(error).__name__)
            return None
        if batch is not None and len(batch.parts) == _PAGE_SIZE:
            if len(self._pages) >= _MAX_PAGES:
                del self._pages[next(iter(self._pages))]
            self._pages[key] = batch
        return batch

    async def _run(self, call: Callable[..., Answer], *args: object) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def _last_of(self, job_id: int) -> int:
        with self._readers() as session:
            return jobs.get_job(session, job_id).n_events

    def _news(self, last: dict[int, int]) -> dict[int, list[Event] | None]:
        """Return the new events of each job; None for a deleted one."""
        news: dict[int, list[Event] | None] = dict.fromkeys(last)
        with self._readers() as session:
            for job_id, (n_events, _) in events.last_events(session, list(last)).items():
                is_current = n_events <= last[job_id]
                news[job_id] = (
                    [] if is_current else events.events_after(session, job_id, last[job_id])
                )
        return news

    def _read(self, job_id: int, sequence: int) -> Batch | None:
        with self._readers() as session:
            page = events.events_after(session, job_id, sequence, _PAGE_SIZE)
        return _batch(page) if page else None


def encode(event: Event) -> bytes:
    """Encode an event for a stream."""
    content = {
        "sequence": event.sequence,
        "kind": event.kind,
        "created": event.created.isoformat(),
        "data": event.data,
    }
    text = json.dumps(content, separators=(",", ":"))
    return f"id: {event.sequence}\nevent: {event.kind}\ndata: {text}\n\n".encode()


def _batch(rows: Sequence[Event]) -> Batch:
    parts = tuple(encode(event) for event in rows)
    return Batch(rows[0].sequence, rows[-1].sequence, parts, b"".join(parts))


async def _is_set_within(news: asyncio.Event, secs: float) -> bool:
    try:
        await asyncio.wait_for(news.wait(), secs)
    except TimeoutError:
        return False
    return True
