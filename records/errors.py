"""The errors a user of the records can meet.

RecordsError
├── DatabaseUnusable   unreachable, not writable, or not a records database
├── SchemaTooNew       written by a newer subgraph-tuner
├── BadLog             a line of an exported log cannot be read
├── NoSuchRow          an id names nothing
├── KeyReused          an idempotency key stands for another request
├── LeaseLost          another process has taken the role over
└── NoValidRecord      a task has no verified record
"""

# ruff: noqa: N818  what went wrong is a better name than "...Error"


class RecordsError(Exception):
    """Base of everything this package raises on purpose."""


class DatabaseUnusable(RecordsError):
    """The database cannot be opened, written, or is something else; one line says which."""


class SchemaTooNew(RecordsError):
    """The schema has a revision this code does not know; nothing was changed."""


class BadLog(RecordsError):
    """A log cannot be read; the caller rolls back, so none of it is kept."""

    def __init__(self, line_number: int, reason: str) -> None:
        super().__init__(f"line {line_number}: {reason}")
        self.line_number = line_number


class NoSuchRow(RecordsError):
    """A row was asked for by an id that the database does not have."""


class NoValidRecord(RecordsError):
    """A task is unknown here, or none of its trials gave a verified result."""


class KeyReused(RecordsError):
    """A client used one idempotency key for two different requests."""


class LeaseLost(RecordsError):
    """Another process has the role now: whatever this transaction did is undone."""
