"""Caches of answers: conditional requests, shared calls and encoded task tables."""

import asyncio
import gzip
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from api.documents import formats
from api.load.fair_semaphore import SENDER, Sender
from api.load.transactions import Transactions
from records.errors import NoSuchRow
from records.tuning import events
from tuner.queries.jobs import read_job
from tuner.schemas import JobView

Answer = TypeVar("Answer")
#: Maximum age of a served table.
FRESH_SECS = 1.0
# Trials of other jobs on the same tasks change a table without an event of its job.
_REREAD_INTERVAL_SECS = 5.0
_MAX_JOBS = 256
_JSON = TypeAdapter(JobView)


def matches(if_none_match: str | None, etag: str) -> bool:
    """Return whether If-None-Match contains a tag, by weak comparison (RFC 9110, 13.1.2)."""
    if if_none_match is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match[:4000].split(",")]
    return "*" in tags or etag.removeprefix("W/") in tags


class SingleFlight(Generic[Answer]):
    """Runs at most one call for each key at a time; concurrent callers get its answer."""

    def __init__(self) -> None:
        self._running: dict[Any, asyncio.Task[Answer]] = {}

    async def join(self, key: Any, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer of the running call for a key, or else run this one."""
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(_run(call))
            self._running[key] = task
            task.add_done_callback(lambda done: self._end(key, done))
        # Shielded, because the cancellation of one client must not cancel the others.
        return await asyncio.shield(task)

    def _end(self, key: Any, task: "asyncio.Task[Answer]") -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio warns if all callers have left


async def _run(call: Callable[[], Awaitable[Answer]]) -> Answer:
    # The client that came first may leave, and its slot is not that of the call.
    sender = SENDER.get(None)
    SENDER.set(Sender("") if sender is None else Sender(sender.client, program=sender.program))
    return await call()


@dataclass(frozen=True)
class Body:
    """A table in one format; ``zipped`` is ``plain`` compressed by gzip."""

    media_type: str
    etag: str
    plain: bytes
    zipped: bytes


@dataclass
class _Entry:
    """A table as read at ``read``; ``checked`` is the last time it was found current."""

    version: events.LastEvents
    view: JobView
    read: float
    checked: float
    bodies: dict[str, Body] = field(default_factory=dict)


class TableCache:
    """The tables of recently requested jobs."""

    def __init__(self, reads: Transactions) -> None:
        self._reads = reads
        self._entries: dict[int, _Entry] = {}
        self._refreshes: SingleFlight[_Entry] = SingleFlight()

    def cached(self, job_id: int, kind: str) -> Body | None:
        """Return a table that is at most ``FRESH_SECS`` old, or None."""
        entry = self._entries.get(job_id)
        if entry is None or time.monotonic() - entry.checked >= FRESH_SECS:
            return None
        return entry.bodies.get(kind)

    async def body(self, job_id: int, kind: str) -> Body:
        """Return the table of a job as JSON, CSV or text, at most ``FRESH_SECS`` old.

        Raises:
            NoSuchRow: If the job does not exist.
        """
        cached = self.cached(job_id, kind)
        if cached is not None:
            return cached

        async def refresh() -> _Entry:
            # Shared, so it does not wait behind other requests of the client that came first.
            SENDER.set(Sender("tables"))
            return await self._reads.run(self._refresh, job_id, kind)

        entry = await self._refreshes.join((job_id, kind), refresh)
        return entry.bodies[kind]

    def forget(self, job_id: int) -> None:
        """Drop the table of a job that this process has just changed."""
        self._entries.pop(job_id, None)

    def view(self, session: Session, job_id: int) -> JobView:
        """Return a job as of its last event; trials of other jobs count a few seconds later.

        Raises:
            NoSuchRow: If the job does not exist.
        """
        return self._current(session, job_id).view

    def _current(self, session: Session, job_id: int) -> _Entry:
        at, entry = time.monotonic(), self._entries.get(job_id)
        version = events.last_events(session, [job_id]).get(job_id)
        if version is None:
            self.forget(job_id)
            raise NoSuchRow(f"no job {job_id}")
        if entry is None or entry.version != version or at - entry.read > _REREAD_INTERVAL_SECS:
            entry = _Entry(version, read_job(session, job_id), at, at)
        entry.checked = at
        if len(self._entries) >= _MAX_JOBS:
            self._entries.clear()
        self._entries[job_id] = entry
        return entry

    def _refresh(self, session: Session, job_id: int, kind: str) -> _Entry:
        entry = self._current(session, job_id)
        if kind not in entry.bodies:
            plain = (
                formats.WRITERS[kind](entry.view)
                if kind != formats.JSON
                else _JSON.dump_json(entry.view)
            )
            # Weak, because the compressed table has the same tag.
            etag = f'W/"{hashlib.sha256(plain).hexdigest()[:16]}"'
            entry.bodies[kind] = Body(
                formats.MEDIA_TYPES[kind], etag, plain, gzip.compress(plain, 4, mtime=0)
            )
        return entry
