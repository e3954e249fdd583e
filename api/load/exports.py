"""Downloads of rows, streamed from one transaction."""

import asyncio
import io
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import IO, Any, cast

from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session, sessionmaker
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from api.clients.caps import Cap
from api.errors import Problem, respond
from records.logs import measure_log

MEDIA_TYPE = "application/jsonl"
#: Time until an export is cut off, seconds; a client that reads 5 MB a second gets 3 GB.
EXPORT_SECS = 600.0
_WAIT_SECS = 1.0
_POLL_SECS = 0.02
# Records that are read in one transaction and held in memory: a few MB.
_PAGE = 100

_CHUNK_CHARS = 2**18
_MAX_QUEUED_CHUNKS = 4
_TICK_SECS = 0.5
# A reader that takes nothing for that long is cut off, because its thread waits for it.
_READ_TIMEOUT_SECS = 60.0


class _ReaderLeft(Exception):  # noqa: N818  not an error
    pass


class _Chunks:
    """A text stream that passes what is written to a short queue of chunks."""

    def __init__(self, max_secs: float) -> None:
        self.deadline = time.monotonic() + max_secs
        self.queue: queue.Queue[bytes | Exception | None] = queue.Queue(_MAX_QUEUED_CHUNKS)
        self.reader_left = threading.Event()
        self._parts: list[str] = []
        self._n_chars = 0

    def write(self, text: str) -> int:
        """Accept text, and wait while the reader is behind."""
        self._parts.append(text)
        self._n_chars += len(text)
        if self._n_chars >= _CHUNK_CHARS:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Queue the accepted text."""
        data = "".join(self._parts).encode()
        self._parts, self._n_chars = [], 0
        if data:
            self.put(data)

    def put(self, item: bytes | Exception | None) -> None:
        """Queue an item.

        Raises:
            _ReaderLeft: If the reader has left, takes nothing for a minute, or is too slow.
        """
        deadline = min(time.monotonic() + _READ_TIMEOUT_SECS, self.deadline)
        while not self.reader_left.is_set() and time.monotonic() < deadline:
            try:
                self.queue.put(item, timeout=_TICK_SECS)
            except queue.Full:
                continue
            return
        self.reader_left.set()
        raise _ReaderLeft

    def run(self, write: Callable[[IO[str]], Any]) -> None:
        """Let a function write to this stream, and queue its end or its error as well."""
        end: Exception | None = None
        try:
            try:
                write(cast("IO[str]", self))
                self.flush()
            except Exception as error:
                end = error
            self.put(end)
        except _ReaderLeft:
            return

    def next(self) -> bytes | Exception | None:
        """Return the next item, or no bytes if none arrived for a moment."""
        try:
            return self.queue.get(timeout=_TICK_SECS)
        except queue.Empty:
            return b""


async def lines_of(write: Callable[[IO[str]], Any], max_secs: float) -> AsyncIterator[bytes]:
    """Yield what a function writes to a stream, as it is written.

    The function runs in a thread of its own, which ends soon after the reader leaves.

    Raises:
        TimeoutError: If the reader takes nothing for a minute, or all of it takes longer than
            ``max_secs``.
    """
    chunks = _Chunks(max_secs)
    threading.Thread(target=chunks.run, args=(write,), name="export", daemon=True).start()
    try:
        while (chunk := await run_in_threadpool(chunks.next)) is not None:
            if isinstance(chunk, Exception):
                raise chunk
            if chunk:
                yield chunk
            elif chunks.reader_left.is_set():
                raise TimeoutError("the reader of an export stopped reading")
    finally:
        chunks.reader_left.set()


class ExportResponse(StreamingResponse):
    """The records of a target, or all, as JSON lines.

    No connection to the database is held while the client reads: each page of records is read in
    a transaction of its own.

    Args:
        readers: Sessions of the engine for exports.
        slots: Exports that run in the process.
        subject: Name of the client.
        target_id: The only target to export; None for all.
    """

    def __init__(
        self, readers: sessionmaker[Session], slots: Cap, subject: str, target_id: int | None
    ) -> None:
        export = measure_log.Export(target_id)

        def write(stream: IO[str]) -> None:
            has_more = True
            while has_more:
                page = io.StringIO()
                with readers() as session:
                    has_more = export.write_page(session, page, _PAGE)
                stream.write(page.getvalue())

        super().__init__(
            lines_of(write, EXPORT_SECS),
            media_type=MEDIA_TYPE,
            headers={"content-disposition": 'attachment; filename="records.jsonl"'},
        )
        self._slots, self._subject = slots, subject

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the records, unless too many exports are running."""
        # A client has all of an export just before its slot is free.
        deadline = time.monotonic() + _WAIT_SECS
        while not self._slots.has_room(self._subject) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECS)
        try:
            with self._slots.taken(self._subject):
                await super().__call__(scope, receive, send)
        except Problem as problem:
            await respond(problem)(scope, receive, send)
