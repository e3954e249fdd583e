"""Formats of the task scheduler table: their negotiation, CSV and plain text."""

import csv
import io
from collections.abc import Callable

from api.errors import Problem
from tuner.formatting import printable
from tuner.reporting import task_columns
from tuner.schemas import JobView

JSON, CSV, TEXT = "json", "csv", "text"
MEDIA_TYPES = {
    JSON: "application/json",
    CSV: "text/csv; charset=utf-8; header=present",
    TEXT: "text/plain; charset=utf-8",
}
_ACCEPTED = {
    "application/json": JSON,
    "application/*": JSON,
    "text/csv": CSV,
    "text/plain": TEXT,
    "text/*": TEXT,
    "*/*": JSON,
}


def negotiate(accept: str | None, requested: str | None = None) -> str:
    """Choose a format.

    Args:
        accept: The Accept header.
        requested: Name of a format, which takes precedence.

    Raises:
        Problem: If the client accepts none of the formats.
    """
    if requested is not None:
        return requested
    if not accept:
        return JSON
    offers = sorted(
        (_offer(part) for part in accept[:1000].split(",")), key=lambda offer: -offer[0]
    )
    for quality, media_type in sorted(offers, key=lambda offer: -offer[0]):
        if quality > 0 and media_type in _ACCEPTED:
            return _ACCEPTED[media_type]
    raise Problem("not-acceptable", "available: application/json, text/csv and text/plain")


def as_csv(view: JobView) -> bytes:
    """Return a table as CSV, one line for each task."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    numbers = [column.name for column in task_columns.COLUMNS]
    first, last = ("id", "task", "workload"), ("gradient", "running", "why", "origin")
    writer.writerow([*first, *numbers, *last])
    for task in view.tasks:
        writer.writerow(
            [
                task.id,
                _cell(task.name),
                task.workload,
                *(_number(column.value(task)) for column in task_columns.COLUMNS),
                _number(task.gradient),
                int(task.running),
                _cell(task.last_pick.why) if task.last_pick else "",
                _cell(task.origin),
            ]
        )
    return stream.getvalue().encode()


def as_text(view: JobView) -> bytes:
    """Return a table as aligned text, for people to paste."""
    return ("\n".join(task_columns.lines(view)) + "\n").encode()


WRITERS: dict[str, Callable[[JobView], bytes]] = {CSV: as_csv, TEXT: as_text}


def _offer(part: str) -> tuple[float, str]:
    media_type, *parameters = part.split(";")
    quality = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                quality = float(value)
            except ValueError:
                quality = 0.0
    return quality, media_type.strip().lower()


def _number(value: float | None) -> str:
    """Write six digits of a number; nothing stands for unknown."""
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    """Keep a spreadsheet from reading a name as a formula."""
    cleaned = printable(text)
    return f"'{cleaned}" if cleaned[:1] in ("=", "+", "-", "@") else cleaned
