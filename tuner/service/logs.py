"""Logs as JSON lines on stderr, each with the job, the pick and the record it is about.

``{"time", "level", "logger", "message"}`` and then whatever is bound here or given as ``extra``.
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
# What every record has; anything beyond was given as ``extra``.
_PLAIN = {*logging.LogRecord("", 0, "", 0, "", (), None).__dict__, "message", "asctime"}
_PLAIN |= {"taskName", "color_message"}


def set_up(level: int | str = logging.INFO, stream: IO[str] | None = None) -> None:
    """Write the logs of this process to a stream as JSON lines; stderr unless told otherwise."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # Of a migration it says nothing that concerns whoever runs a service.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.captureWarnings(True)


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Add fields to every line that is logged inside, by this thread or task."""
    token = _BOUND.set({**_BOUND.get(), **fields})
    try:
        yield
    finally:
        _BOUND.reset(token)


class JsonLines(logging.Formatter):
    """One JSON object a line, whatever is logged."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        extra = {
            key: value
            for key, value in vars(record).items()
            # Ray marks records with fields of its own.
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
