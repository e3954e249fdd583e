"""Files that clients download, which a cap counts."""

from pathlib import Path
from typing import Any

from fastapi.responses import FileResponse
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from api.clients.caps import Cap
from api.errors import Problem, respond
from api.load.fair_semaphore import SENDER


class Download(FileResponse):
    """A file that answers invalid ranges with problem documents.

    Args:
        cap: Counts the answers that are being sent.
        options: Those of other responses.
    """

    def __init__(self, path: Path, cap: Cap, **options: Any) -> None:
        super().__init__(path, stat_result=path.stat(), **options)
        self._cap = cap

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the file, or the requested ranges of it."""
        size = int(self.headers["content-length"])
        headers = Headers(scope=scope)
        # A range of another version of the file is ignored: the file is sent whole.
        is_current = headers.get("if-range", self.headers["etag"]) == self.headers["etag"]
        ranges = headers.get("range", "") if is_current else ""
        if ranges and not _is_servable(ranges, size):
            extra = {"content-range": f"bytes */{size}"}
            problem = Problem("bad-range", f"the file has {size} bytes", headers=extra)
            await respond(problem)(scope, receive, send)
            return
        sender = SENDER.get()
        sender.peer.part()
        try:
            with self._cap.taken(sender.client):
                await super().__call__(scope, receive, send)
        except Problem as problem:
            await respond(problem)(scope, receive, send)


def _is_servable(ranges: str, size: int) -> bool:
    """Return whether Starlette serves ranges; it would reject others in plain text."""
    try:
        # Private; see ADR 0028.
        FileResponse._parse_range_header(ranges, size)
    except Exception:
        return False
    return True
