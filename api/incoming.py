"""Uploads that are arriving: few of each token, counted before their bytes are written."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from api.auth import ANONYMOUS
from api.errors import Problem

MAX_UPLOADS = 4
_RETRY_AFTER_SECS = 5


@dataclass
class Incoming:
    """Uploads that this process receives: at most ``MAX_UPLOADS`` of each token.

    Attributes:
        n_bytes: Bytes that they announced, together.
    """

    n_bytes: int = 0
    _subjects: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def taken(self, subject: str, n_bytes: int) -> Iterator[None]:
        """Count an upload during the block. Without tokens, clients are not told apart.

        Raises:
            Problem: If the token has as many as it may.
        """
        if self._subjects[subject] >= MAX_UPLOADS and subject != ANONYMOUS:
            headers = {"retry-after": str(_RETRY_AFTER_SECS)}
            detail = f"token {subject!r} is sending {MAX_UPLOADS} uploads already"
            raise Problem("busy", detail, headers=headers)
        self._subjects[subject] += 1
        self.n_bytes += n_bytes
        try:
            yield
        finally:
            self.n_bytes -= n_bytes
            self._subjects[subject] -= 1
            self._subjects += Counter()  # drops zeros
