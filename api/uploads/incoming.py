"""Uploads and imports that are arriving: few of each token, counted before they are written."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from api.clients.auth import ANONYMOUS
from api.errors import Problem

MAX_UPLOADS = 4
_RETRY_AFTER_SECS = 5


@dataclass
class Incoming:
    """Uploads and imports that this process receives: at most ``MAX_UPLOADS`` of each token.

    Attributes:
        n_upload_bytes: Bytes that uploads announced, together.
        n_import_bytes: Bytes that imports announced, together.
    """

    n_upload_bytes: int = 0
    n_import_bytes: int = 0
    _subjects: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def taken(
        self, subject: str, n_upload_bytes: int = 0, n_import_bytes: int = 0
    ) -> Iterator[None]:
        """Count an upload or import during the block. Without tokens, clients are not told apart.

        Raises:
            Problem: If the token has as many as it may.
        """
        if self._subjects[subject] >= MAX_UPLOADS and subject != ANONYMOUS:
            headers = {"retry-after": str(_RETRY_AFTER_SECS)}
            detail = f"token {subject!r} is sending {MAX_UPLOADS} uploads already"
            raise Problem("busy", detail, headers=headers)
        self._subjects[subject] += 1
        self.n_upload_bytes += n_upload_bytes
        self.n_import_bytes += n_import_bytes
        try:
            yield
        finally:
            self.n_upload_bytes -= n_upload_bytes
            self.n_import_bytes -= n_import_bytes
            self._subjects[subject] -= 1
            self._subjects += Counter()  # drops zeros
