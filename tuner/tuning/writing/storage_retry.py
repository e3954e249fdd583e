"""Retries while the database is locked, as by a long import, or away, as for a restart.

Measured trials are worth the wait; commands that only read are not, and do not use this module.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Engine, exc, text
from sqlalchemy.orm import Session, sessionmaker

from records import database
from records.errors import LeaseLost, SchemaTooNew, SchemaTooOld
from tuner import interrupts
from tuner.context import Context
from tuner.errors import summary

# Errors that end a run and not just a job: the database is away, another process may write to it
# now, or another version has upgraded it. A server that ends a transaction because it was idle
# raises InternalError.
FATAL_DB_ERRORS = (
    LeaseLost,
    SchemaTooNew,
    SchemaTooOld,
    exc.OperationalError,
    exc.InterfaceError,
    exc.InternalError,
    exc.TimeoutError,
)

_MAX_WAIT_SECS = 600.0
_SCHEMA_INTERVAL_SECS = 10.0
_PROBE_INTERVAL_SECS = 1.0
# A database that fails this many times in a row, each time within seconds, is not away.
_MAX_FAILURES = 3
_QUICK_FAILURE_SECS = 30.0
# SQLSTATE of refusals by a server that is there, and the time within which these count, which is
# longer than they take: a lock or a statement took too long, or its disk is full.
_REFUSALS = ("55P03", "57014", "53100")
_REFUSAL_SECS = 3600.0

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")


def sessions_with_retry(context: Context) -> sessionmaker[Session]:
    """Return a factory of sessions that wait minutes for a locked database.

    They notice an upgrade of it within seconds, and write nothing any more.
    """
    maker = database.sessions(context.engine, on_locked=wait_for_lock)
    database.watch_schema(maker, _SCHEMA_INTERVAL_SECS)
    return maker


def wait_for_lock(waited_secs: float) -> bool:
    """Return whether to wait longer for a locked database.

    Raises:
        Interrupted: If the process was asked to stop.
    """
    interrupts.raise_if_interrupted()
    is_worth_it = waited_secs < _MAX_WAIT_SECS
    _LOG.warning(
        "another process has locked the database for %.0f s, %s",
        waited_secs,
        "trying again" if is_worth_it else "giving up",
    )
    return is_worth_it


def run_with_reconnect(engine: Engine, work: Callable[[], Result]) -> Result:
    """Run work, and run it again after an outage of its database; it must resume where it was.

    Raises:
        sqlalchemy.exc.DBAPIError: If the database stays away for ten minutes, stays locked, or
            keeps failing although it is there.
        Interrupted: If the process was asked to stop.
    """
    n_failures = 0
    while True:
        began = time.monotonic()
        try:
            return work()
        except (exc.OperationalError, exc.InterfaceError, exc.InternalError) as error:
            interrupts.raise_if_interrupted()
            is_refusal = getattr(error.orig, "sqlstate", None) in _REFUSALS
            limit = _REFUSAL_SECS if is_refusal else _QUICK_FAILURE_SECS
            n_failures = n_failures + 1 if time.monotonic() - began <= limit else 1
            if "locked" in str(error.orig) or n_failures > _MAX_FAILURES:
                raise
            _LOG.warning("the database failed, resuming when it is back: %s", summary(error))
            _wait_for(engine)


def _wait_for(engine: Engine) -> None:
    """Wait until a database answers a query."""
    deadline = time.monotonic() + _MAX_WAIT_SECS
    while True:
        with interrupts.waiting():
            time.sleep(_PROBE_INTERVAL_SECS)
        try:
            with engine.connect() as connection:
                connection.execute(text("SELECT 1"))
                return
        except exc.OperationalError:
            if time.monotonic() > deadline:
                raise
