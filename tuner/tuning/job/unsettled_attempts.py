"""Attempts that a process could not take back because it had lost its database."""

import threading
from collections.abc import Callable

from sqlalchemy.orm import Session, sessionmaker

from records.tuning import attempts

_Settle = Callable[[Session], None]


class UnsettledAttempts:
    """Attempts to take back once there is a database: the process lives, whatever they look like.

    It outlives the terms of a coordinator. Settling needs no lease: another coordinator may have
    begun the same work since, and its attempt is counted on its own. Methods may be called from
    any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[_Settle] = []

    def add_job(self, job_id: int) -> None:
        """Note an attempt at loading a job, or at confirming its winners."""
        self._add(lambda session: attempts.end_job(session, job_id))

    def add_build(self, build_id: int) -> None:
        """Note an attempt at a build."""
        self._add(lambda session: attempts.end_build(session, build_id))

    def add_rounds(self, job_id: int) -> None:
        """Note the attempts at the open rounds of a job."""
        self._add(lambda session: attempts.clear_rounds(session, job_id))

    def settle(self, sessions: sessionmaker[Session]) -> None:
        """Take all attempts back in one transaction; after an error they stay noted.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        with self._lock:
            pending = list(self._pending)
        if not pending:
            return
        with sessions.begin() as session:
            for settle in pending:
                settle(session)
        with self._lock:
            del self._pending[: len(pending)]

    def _add(self, settle: _Settle) -> None:
        with self._lock:
            self._pending.append(settle)
