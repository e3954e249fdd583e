"""Errors raised by the records package.

RecordsError
├── DatabaseUnusable   unreachable, not writable, or not a records database
│   └── DatabaseFull   its disk has no room
├── SchemaTooNew       written by a newer subgraph-tuner
├── SchemaTooOld       written by an older one, and not upgraded yet
├── BadLog             an exported log has an unreadable line
├── NoSuchRow          an id does not exist
├── NameInUse          a device has the name of another one
├── KeyReused          an idempotency key belongs to another request
├── QuotaExceeded      an owner asked for more than its quota
├── LeaseLost          another process has acquired the role
├── NoValidRecord      a task has no verified record
└── WrongName          a workload is named like other IR
"""

# ruff: noqa: N818  each name states the condition


class RecordsError(Exception):
    """Base class of the errors of this package."""


class DatabaseUnusable(RecordsError):
    """The database cannot be opened or written, or it is not a records database."""


class DatabaseFull(DatabaseUnusable):
    """The disk of the database has no room."""


class SchemaTooNew(RecordsError):
    """The schema has a revision that this version does not know; nothing was changed."""


class SchemaTooOld(RecordsError):
    """The schema has to be upgraded by a command of its own; nothing was changed."""


class BadLog(RecordsError):
    """A log cannot be read; the caller rolls the whole import back."""

    def __init__(self, line_number: int, reason: str) -> None:
        super().__init__(f"line {line_number}: {reason}")
        self.line_number = line_number


class NoSuchRow(RecordsError):
    """The database has no row with the requested id."""


class NameInUse(RecordsError):
    """A device has the name of another one."""


class NoValidRecord(RecordsError):
    """A task is unknown, or none of its trials gave a verified result."""


class WrongName(RecordsError):
    """A workload has IR whose name is another one; nothing was stored."""


class KeyReused(RecordsError):
    """A client used one idempotency key for two different requests."""


class QuotaExceeded(RecordsError):
    """A change exceeds a quota of its owner; the caller rolls it back.

    Attributes:
        waiting_helps: True if the same change may be possible later.
    """

    def __init__(self, message: str, quota: str, *, waiting_helps: bool) -> None:
        super().__init__(message)
        self.quota = quota
        self.waiting_helps = waiting_helps


class LeaseLost(RecordsError):
    """Another process has acquired the role, so this transaction is rolled back."""
