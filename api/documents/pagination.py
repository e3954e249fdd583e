"""Pagination of lists with opaque cursors."""

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from api.documents.schemas import MAX_ID, storable
from api.errors import Problem
from tuner.queries.jobs import JobOrder
from tuner.schemas import JobSummary


class _Numbered(Protocol):
    """A row with a number."""

    @property
    def id(self) -> int: ...


Row = TypeVar("Row")
Numbered = TypeVar("Numbered", bound=_Numbered)


def encode(*parts: str | int) -> str:
    """Return a cursor."""
    text = json.dumps(parts, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(cursor: str, *kinds: type) -> list[Any]:
    """Return the parts of a cursor.

    Raises:
        Problem: If the cursor is not one of this service.
    """
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        parts = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        parts = None
    if not isinstance(parts, list) or [type(part) for part in parts] != list(kinds):
        raise _bad_cursor()
    try:
        for part in parts:
            storable(part) if isinstance(part, str) else range(-MAX_ID, MAX_ID + 1).index(part)
    except ValueError:
        raise _bad_cursor() from None
    return parts


def number_of(cursor: str | None) -> int | None:
    """Return the number in a cursor; None for the first page."""
    return None if cursor is None else int(decode(cursor, int)[0])


def cut(rows: Sequence[Row], limit: int) -> tuple[list[Row], bool]:
    """Split off the row beyond a page; return the page, and whether that row exists."""
    return list(rows[:limit]), len(rows) > limit


def newest_first(rows: Sequence[Numbered], limit: int) -> tuple[list[Numbered], str | None]:
    """Return the rows of a page sorted by falling ``id``, and the cursor of the next page.

    Args:
        rows: The rows of the page, and one more if there is a next page.
        limit: Maximum of rows on the page.
    """
    shown, more = cut(rows, limit)
    return shown, encode(shown[-1].id) if more else None


def after_job(job: JobSummary, sort: JobOrder) -> str:
    """Return the cursor of the page after a job."""
    value = getattr(job, sort.lstrip("-"))
    text = value.isoformat() if isinstance(value, datetime) else value
    return encode(sort, text, job.id)


def job_after(cursor: str | None, sort: JobOrder) -> tuple[Any, int] | None:
    """Return the sorted value and the number of the last job of the previous page.

    Raises:
        Problem: If the cursor is invalid, or of a list in another order.
    """
    if cursor is None:
        return None
    kind = int if sort.lstrip("-") == "priority" else str
    cursor_sort, value, job_id = decode(cursor, str, kind, int)
    if cursor_sort != sort:
        raise _bad_cursor()
    if sort.lstrip("-") in ("created", "updated"):
        try:
            value = datetime.fromisoformat(value).astimezone(UTC)
        except (ValueError, OverflowError):
            raise _bad_cursor() from None
    return value, job_id


def _bad_cursor() -> Problem:
    return Problem(
        "invalid", "the cursor is not one of this list", advice="Start again without a cursor."
    )
