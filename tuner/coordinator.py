"""Several jobs on one machine's device: who gets the next round, until all are done."""

import logging
import time
from collections.abc import Callable, Sequence

from sqlalchemy import exc
from sqlalchemy.orm import Session, sessionmaker

from records import jobs
from records.errors import LeaseLost
from records.models import Job, JobState
from scheduler import fairness
from scheduler.fairness import JobShare
from tuner.errors import TunerError, WorkError
from tuner.session import TuningSession

# Asked before every round for jobs that came in meanwhile.
Source = Callable[[], Sequence[TuningSession]]

# What ends a run and not just a job: there is no database, or it is not ours to write any more.
# A server that ended a transaction because nothing happened in it says InternalError.
LOST = (
    LeaseLost,
    exc.OperationalError,
    exc.InterfaceError,
    exc.InternalError,
    exc.TimeoutError,
)

_LOG = logging.getLogger(__name__)


def _no_more() -> Sequence[TuningSession]:
    return ()


class Coordinator:
    """Gives rounds to jobs by priority, fair over the seconds that rounds take.

    A job that fails, in whatever way, does not end the others; see :attr:`failures`. Jobs that
    share tasks share their records: what one measures, the others are credited with.

    Args:
        sessions: Opens database sessions.
        source: Brings jobs that came in meanwhile.
        interrupted: What becomes of jobs under way when the run is interrupted.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        source: Source = _no_more,
        interrupted: JobState = "paused",
    ) -> None:
        self._sessions = sessions
        self._source = source
        self._interrupted = interrupted
        self._running: dict[int, TuningSession] = {}
        self.failures: dict[int, TunerError] = {}

    @property
    def job_ids(self) -> set[int]:
        """The jobs under way."""
        return set(self._running)

    def run(self, first: Sequence[TuningSession] = ()) -> None:
        """Run jobs, and those that the source brings, until none has anything left to do.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost, or the
                right to write to it; see :data:`LOST`. The jobs can go on where it is found.
        """
        try:
            self._admit(first)
            self._admit(self._source())
            while self._running:
                self._step()
                self._admit(self._source())
        finally:
            self._put_away()

    def _put_away(self) -> None:
        """Let the jobs rest that are under way; without a database they stay as they are."""
        for session in self._running.values():
            try:
                session.rest(self._interrupted)
            except LOST as error:
                _LOG.warning("job %d stays as it is: %s", session.job_id, type(error).__name__)
        self._running.clear()

    def _admit(self, new: Sequence[TuningSession]) -> None:
        """Start sessions; a job joins where the one furthest behind is."""
        others = self._shares()
        for session in new:
            with self._sessions.begin() as database:
                # Virtual times count from when the first of these jobs began, not for ever.
                jobs.set_virtual_secs(database, session.job_id, fairness.join(0.0, others))
            session.start()
            self._running[session.job_id] = session

    def _step(self) -> None:
        """Give the job that is furthest behind one round, and end it if that was its last."""
        shares = {share.job_id: share for share in self._shares()}
        job_id = fairness.choose_job(list(shares.values()))
        assert job_id is not None
        session = self._running[job_id]
        started = time.monotonic()
        try:
            if not session.step() and session.finish():
                self._end(job_id)
        except LOST:
            raise
        except TunerError as error:
            self._fail(session, error)
        except Exception as error:
            # A defect of ours, or data that the database refuses: the others go on.
            _LOG.exception("job %d failed", job_id)
            self._fail(session, WorkError(f"internal error: {type(error).__name__}: {error}"))
        with self._sessions.begin() as database:
            secs = time.monotonic() - started
            jobs.set_virtual_secs(database, job_id, fairness.charge(shares[job_id], secs))

    def _fail(self, session: TuningSession, error: TunerError) -> None:
        _LOG.info("failed: %s", error, extra={"job": session.job_id})
        session.rest("failed", str(error))
        self.failures[session.job_id] = error
        self._end(session.job_id)

    def _end(self, job_id: int) -> None:
        self._running.pop(job_id).rest(self._interrupted)

    def _shares(self) -> list[JobShare]:
        with self._sessions() as database:
            # Deleted ones too: who cancels a job and deletes it does so while its round runs.
            rows = [database.get_one(Job, job_id) for job_id in self._running]
            return [JobShare(row.id, row.priority, row.virtual_secs) for row in rows]
