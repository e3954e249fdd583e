"""What to do while a database is locked, as by a long import, or away, as for its own restart.

A trial that was just measured is worth the wait; a command that only asks for something is not.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Engine, exc, text
from sqlalchemy.orm import Session, sessionmaker

from records import database
from records.errors import LeaseLost
from tuner import interrupts
from tuner.context import Context
from tuner.errors import summary

# What ends a run and not just a job: there is no database, or it is not ours to write any more.
# A server that ended a transaction because nothing happened in it says InternalError.
FATAL_DB_ERRORS = (
    LeaseLost,
    exc.OperationalError,
    exc.InterfaceError,
    exc.InternalError,
    exc.TimeoutError,
)

_MOST_SECS = 600.0
_ASK_SECS = 1.0
# A database that is there and refuses again and again is not away.
_MOST_REFUSALS = 3
_SOON_SECS = 30.0

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")


def sessions_with_retry(context: Context) -> sessionmaker[Session]:
    """Return sessions that wait for a locked database, as those who measure do."""
    return database.sessions(context.engine, on_locked=wait_for_lock)


def wait_for_lock(waited_secs: float) -> bool:
    """Say whether to try again: for some minutes, or until somebody asks the process to stop.

    Raises:
        Interrupted: If somebody did.
    """
    interrupts.raise_if_interrupted()
    goes_on = waited_secs < _MOST_SECS
    _LOG.warning(
        "somebody else has had the database locked for %.0f s, %s",
        waited_secs,
        "trying again" if goes_on else "giving up",
    )
    return goes_on


def run_with_reconnect(engine: Engine, work: Callable[[], Result]) -> Result:
    """Do work that goes on where it was whenever its database was away, once it is back.

    Raises:
        sqlalchemy.exc.DBAPIError: If the database stays away for some minutes, if somebody keeps
            it locked, or if it is there and refuses what the work wants.
        Interrupted: If somebody asks the process to stop.
    """
    n_refusals = 0
    while True:
        began = time.monotonic()
        try:
            return work()
        except (exc.OperationalError, exc.InterfaceError, exc.InternalError) as error:
            interrupts.raise_if_interrupted()
            n_refusals = 1 if time.monotonic() - began > _SOON_SECS else n_refusals + 1
            if "locked" in str(error.orig) or n_refusals > _MOST_REFUSALS:
                raise
            _LOG.warning("the database failed, going on when it is back: %s", summary(error))
            _wait_for(engine)


def _wait_for(engine: Engine) -> None:
    """Wait until a database answers."""
    deadline = time.monotonic() + _MOST_SECS
    while True:
        with interrupts.waiting():
            time.sleep(_ASK_SECS)
        try:
            with engine.connect() as connection:
                connection.execute(text("SELECT 1"))
                return
        except exc.OperationalError:
            if time.monotonic() > deadline:
                raise
