"""Exports of records: few at a time, on connections of their own, and not for ever."""

import asyncio
import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session, sessionmaker
from starlette.types import Receive, Scope, Send

from api.capacity import MAX_EXPORTS
from api.errors import Problem, respond
from api.streaming import lines_of
from records import log

MEDIA_TYPE = "application/jsonl"
#: Time until an export is cut off, seconds; a client that reads 5 MB a second gets 3 GB.
EXPORT_SECS = 600.0
_RETRY_AFTER_SECS = 30
_WAIT_SECS = 1.0
_POLL_SECS = 0.02
# Records that are read in one transaction and held in memory: a few MB.
_PAGE = 100


@dataclass
class Slots:
    """Exports that run in this process: at most ``MAX_EXPORTS``, and one of each subject."""

    _subjects: set[str] = field(default_factory=set)

    @contextmanager
    def taken(self, subject: str) -> Iterator[None]:
        """Hold a slot during the block.

        Raises:
            Problem: If there is none.
        """
        if not self._has_room(subject):
            headers = {"retry-after": str(_RETRY_AFTER_SECS)}
            raise Problem("busy", "other exports are running", headers=headers)
        self._subjects.add(subject)
        try:
            yield
        finally:
            self._subjects.discard(subject)

    async def wait(self, subject: str) -> None:
        """Wait a moment for a slot: a client has all of an export just before its slot is free."""
        deadline = time.monotonic() + _WAIT_SECS
        while not self._has_room(subject) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECS)

    def _has_room(self, subject: str) -> bool:
        return subject not in self._subjects and len(self._subjects) < MAX_EXPORTS


class ExportResponse(StreamingResponse):
    """The records of a target, or all, as JSON lines.

    No connection to the database is held while the client reads: each page of records is read in
    a transaction of its own.

    Args:
        readers: Sessions of the engine for exports.
        slots: Slots of the process.
        subject: Name of the client.
        target_id: The only target to export; None for all.
    """

    def __init__(
        self, readers: sessionmaker[Session], slots: Slots, subject: str, target_id: int | None
    ) -> None:
        export = log.Export(target_id)

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
        await self._slots.wait(self._subject)
        try:
            with self._slots.taken(self._subject):
                await super().__call__(scope, receive, send)
        except Problem as problem:
            await respond(problem)(scope, receive, send)
