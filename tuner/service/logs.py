"""Logs as JSON lines on stderr, each with its job, pick and record.

A line has ``time``, ``level``, ``logger`` and ``message``, then the fields that are bound here or
given as ``extra``.
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


def set_up(level: int | str = logging.INFO, stream: IO[str] | None = None) -> None:
    """Write the logs of this process to a stream, stderr by default, as JSON lines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # Its progress messages do not concern the operator of a service.
    logging.getLogger("alembic").setLevel(logging.WARNING)
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
        extra = {
            key: value
            for key, value in vars(record).items()
            # Ray adds private fields to records.
            if key not in _PLAIN and not key.startswith("_")
        }
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_BOUND.get(),
            **extra,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
