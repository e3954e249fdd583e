"""Several jobs on one machine's device: who gets the next round, until all are done."""

import time
from collections.abc import Callable, Sequence

from sqlalchemy.orm import Session, sessionmaker

from records import jobs
from scheduler import fairness
from scheduler.fairness import JobShare
from tuner.errors import WorkError
from tuner.overview import Overview
from tuner.session import TuningSession

# Asked before every round for jobs that came in meanwhile.
Source = Callable[[], Sequence[TuningSession]]


def _no_more() -> Sequence[TuningSession]:
    return ()


class Coordinator:
    """Gives rounds to jobs by priority, fair over the seconds that rounds take.

    A job that fails does not end the others; see :attr:`failures`. Jobs that share tasks
    share their records: what one measures, the others are credited with.
    """

    def __init__(self, sessions: sessionmaker[Session], source: Source = _no_more) -> None:
        self._sessions = sessions
        self._source = source
        self._running: dict[int, TuningSession] = {}
        self.failures: dict[int, WorkError] = {}

    def run(self, first: Sequence[TuningSession]) -> None:
        """Run jobs, and those that the source brings, until none has anything left to do.

        Whatever interrupts it, the jobs under way rest as paused.
        """
        try:
            self._admit(first)
            while self._running:
                self._step()
                self._admit(self._source())
        finally:
            for session in self._running.values():
                session.rest("paused")

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
        except WorkError as error:
            session.rest("failed", str(error))
            self.failures[job_id] = error
            self._end(job_id)
        with self._sessions.begin() as database:
            secs = time.monotonic() - started
            jobs.set_virtual_secs(database, job_id, fairness.charge(shares[job_id], secs))

    def _end(self, job_id: int) -> None:
        self._running.pop(job_id).rest("paused")

    def _shares(self) -> list[JobShare]:
        with self._sessions() as database:
            rows = [jobs.get_job(database, job_id) for job_id in self._running]
            return [JobShare(row.id, row.priority, row.virtual_secs) for row in rows]


def run_alone(sessions: sessionmaker[Session], session: TuningSession) -> Overview:
    """Run one job to its end, and return its table.

    Raises:
        WorkError: If it failed.
    """
    coordinator = Coordinator(sessions)
    coordinator.run([session])
    for error in coordinator.failures.values():
        raise error
    return session.overview()
