"""Logs on stderr, one line each, with their job, pick and record.

A line has ``time``, ``level``, ``logger`` and ``message``, then the fields that are bound here or
given as ``extra``: as a JSON object, or as text.
"""

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import IO, Any

_BOUND: ContextVar[Mapping[str, Any]] = ContextVar("bound", default=MappingProxyType({}))
# Attributes of every record; all others were given as ``extra``.
_PLAIN = {*logging.LogRecord("", 0, "", 0, "", (), None).__dict__, "message", "asctime"}
_PLAIN |= {"taskName", "color_message"}


def set_up(level: str = "info", log_format: str = "json", stream: IO[str] | None = None) -> None:
    """Write the logs of this process to a stream, stderr by default.

    Args:
        level: Least severe level to write.
        log_format: ``json`` for JSON lines, or ``text``.
        stream: Destination.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(TextLines() if log_format == "text" else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Their progress messages do not concern the operator of a service.
    for name in ("alembic", "filelock"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Add fields to every line that this thread or task logs inside."""
    token = _BOUND.set({**_BOUND.get(), **fields})
    try:
        yield
    finally:
        _BOUND.reset(token)


class JsonLines(logging.Formatter):
    """Formats each record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """Formats each record as one line of text, with its fields as ``name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line; values with spaces or control characters are quoted."""
        fields = _fields(record)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        head = f"{_time(record)} {record.levelname.lower():<7} {record.name}"
        message = "".join(char if char.isprintable() else " " for char in record.getMessage())
        return " ".join([head, message, *(f"{key}={_word(fields[key])}" for key in fields)])


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that were bound, and those given as ``extra``."""
    extra = {key: value for key, value in vars(record).items() if key not in _PLAIN}
    return {**_BOUND.get(), **extra}


def _word(value: Any) -> str:
    text = "-" if value is None else str(value)
    is_word = text.isprintable() and not set(text) & set(' "=') and text
    return text if is_word else json.dumps(text)
