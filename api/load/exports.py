"""Exports of records: few at a time, on connections of their own, and not for ever."""

import asyncio
import io
import time
from typing import IO

from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session, sessionmaker
from starlette.types import Receive, Scope, Send

from api.clients.caps import Cap
from api.errors import Problem, respond
from api.load.streaming import lines_of
from records.logs import measure_log

MEDIA_TYPE = "application/jsonl"
#: Time until an export is cut off, seconds; a client that reads 5 MB a second gets 3 GB.
EXPORT_SECS = 600.0
_WAIT_SECS = 1.0
_POLL_SECS = 0.02
# Records that are read in one transaction and held in memory: a few MB.
_PAGE = 100


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
