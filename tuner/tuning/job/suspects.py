"""Work that may end its process: its turn, and attempts to take back."""

import threading
from collections.abc import Callable

from sqlalchemy.orm import Session, sessionmaker

from records.tuning import attempts

_Settle = Callable[[Session], None]


class SuspectTurn:
    """A turn that is taken or left for later, never waited for; used by one thread.

    Work that waits would hold what it has until then: a device, or the queue behind it. See
    :mod:`records.tuning.attempts`.
    """

    def __init__(self) -> None:
        self._is_taken = False

    def try_take(self) -> bool:
        """Take the turn; False if other work has it."""
        is_free = not self._is_taken
        self._is_taken = True
        return is_free

    def give_back(self) -> None:
        """End the turn."""
        self._is_taken = False


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
