"""Admission of uploads and imports before their bodies are received."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from api.clients.auth import ANONYMOUS, Subject
from api.clients.limits import body_limit
from api.errors import DISK_RETRY_AFTER_SECS, Problem
from api.settings import ApiSettings
from tuner.files.disk_floor import shortage

MAX_UPLOADS = 4
_RETRY_AFTER_SECS = 5


@dataclass
class Incoming:
    """Uploads and imports that this process receives: at most ``MAX_UPLOADS`` of each token.

    Attributes:
        settings: Limits of sizes and of free disk space.
        n_upload_bytes: Bytes that uploads announced, together.
        n_import_bytes: Bytes that imports announced, together.
    """

    settings: ApiSettings
    n_upload_bytes: int = 0
    n_import_bytes: int = 0
    _subjects: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def receiving(
        self, request: Request, subject: Subject, *, is_import: bool = False
    ) -> AsyncIterator[int]:
        """Admit an upload or import during the block; yield the length that it announced, or 0.

        Args:
            request: Request with an unread body.
            subject: Authenticated sender. Without tokens, clients are not told apart.
            is_import: True for a log of records, which is not copied to the folder of uploads.

        Raises:
            Problem: If the token sends too many at once, or too little disk space would be left
                after this and all others that are arriving.
        """
        length = request.headers.get("content-length", "")
        announced = int(length[:20]) if length.isdecimal() else 0
        # A length that is not announced may be any.
        limit = body_limit(request.url.path, self.settings.max_upload_bytes)
        n_bytes = announced if length else limit
        n_upload_bytes, n_import_bytes = (0, n_bytes) if is_import else (n_bytes, 0)
        if self._subjects[subject.name] >= MAX_UPLOADS and subject.name != ANONYMOUS:
            headers = {"retry-after": str(_RETRY_AFTER_SECS)}
            detail = f"token {subject.name!r} is sending {MAX_UPLOADS} uploads already"
            raise Problem("busy", detail, headers=headers)
        self._subjects[subject.name] += 1
        self.n_upload_bytes += n_upload_bytes
        self.n_import_bytes += n_import_bytes
        try:
            await run_in_threadpool(
                check_disk, self.settings, self.n_upload_bytes, self.n_import_bytes
            )
            yield announced
        finally:
            self.n_upload_bytes -= n_upload_bytes
            self.n_import_bytes -= n_import_bytes
            self._subjects[subject.name] -= 1
            self._subjects += Counter()  # drops zeros


def check_disk(settings: ApiSettings, n_upload_bytes: int = 0, n_import_bytes: int = 0) -> None:
    """Check that free disk space is left after all that is arriving; this reads the disk.

    Raises:
        Problem: If there is too little.
    """
    if reason := shortage(
        settings.tuner, n_upload_bytes=n_upload_bytes, n_import_bytes=n_import_bytes
    ):
        headers = {"retry-after": str(DISK_RETRY_AFTER_SECS)}
        raise Problem("disk-full", reason, headers=headers)
