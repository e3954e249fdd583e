"""What to do while another process keeps an SQLite database locked, as a long import does.

A trial that was just measured is worth the wait; a command that only asks for something is not.
"""

import logging

from sqlalchemy.orm import Session, sessionmaker

from records import database
from tuner import interrupts
from tuner.context import Context

_MOST_SECS = 600.0

_LOG = logging.getLogger(__name__)


def patient_sessions(context: Context) -> sessionmaker[Session]:
    """Return sessions that wait for a locked database, as those who measure do."""
    return database.sessions(context.engine, on_locked=wait_for_lock)


def wait_for_lock(waited_secs: float) -> bool:
    """Say whether to try again: for some minutes, or until somebody asks the process to stop.

    Raises:
        Interrupted: If somebody did.
    """
    interrupts.raise_if_asked()
    goes_on = waited_secs < _MOST_SECS
    _LOG.warning(
        "somebody else has had the database locked for %.0f s, %s",
        waited_secs,
        "trying again" if goes_on else "giving up",
    )
    return goes_on
