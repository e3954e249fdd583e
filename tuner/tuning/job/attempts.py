"""Counting of the attempts at the rounds and finals of a job, over restarts of the process."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from records.models import Pick
from records.tuning import attempts
from tuner.errors import WorkError
from tuner.tuning.context import TuningContext
from tuner.tuning.writing.storage_retry import FATAL_DB_ERRORS


class JobAttempts:
    """Attempts at the rounds of one job; attempts that earlier processes left are suspect.

    Args:
        context: Dependencies of the session.
        counts: False for a job of the command line, whose user decides to try it again.
    """

    def __init__(self, context: TuningContext, job_id: int, *, counts: bool) -> None:
        self._context = context
        self._job_id = job_id
        self._counts = counts
        # Deaths of processes by pick, for rounds that were begun before.
        self._deaths: dict[int, int] = {}
        # Pick that has the turn of suspects.
        self._suspect: int | None = None

    def add_open(self, picks: Sequence[Pick]) -> None:
        """Add the rounds that ran when an earlier process ended."""
        self._deaths |= {pick.id: pick.attempts for pick in picks}

    def may_begin(self, pick: Pick) -> bool:
        """Return whether a round may begin now; one that several processes died over takes turns.

        The turn ends with :meth:`round`, or with :meth:`leave` if the round is not begun.
        """
        deaths = self._deaths.get(pick.id, 0) if self._counts else 0
        if not attempts.SUSPECT_DEATHS <= deaths < attempts.MAX_DEATHS:
            return True
        if self._suspect is not None or not self._context.suspect_turn.try_take():
            return False
        self._suspect = pick.id
        return True

    def leave(self, pick: Pick | None = None) -> None:
        """End the turn of a round, or that of any."""
        if self._suspect is not None and (pick is None or pick.id == self._suspect):
            self._suspect = None
            self._context.suspect_turn.give_back()

    @asynccontextmanager
    async def round(self, pick: Pick) -> AsyncIterator[None]:
        """Count an attempt at a round.

        Raises:
            WorkError: If the round, and with it the job, is quarantined.
        """
        deaths = self._deaths.get(pick.id)
        if deaths is None or not self._counts:
            yield
        elif deaths >= attempts.MAX_DEATHS:
            work = f"running round {pick.sequence} on task {pick.task_id}"
            with self._context.sessions.begin() as session:
                attempts.quarantine_job(session, self._job_id, work)
            raise WorkError(attempts.reason_of(work))
        else:
            try:
                writer = self._context.record_writer
                writer.write_grouped(attempts.begin_rounds, pick.id, self._job_id)
                await writer.wait_flushed(self._job_id)
                yield
            finally:
                self.leave(pick)
        self._deaths.pop(pick.id, None)

    def give_back(self, pick: Pick) -> None:
        """Take the attempt at a round back, whose device was lost; it is begun again later."""
        self._deaths.setdefault(pick.id, 0)
        if self._counts:
            self._context.record_writer.write_grouped(attempts.end_rounds, pick.id)

    @contextmanager
    def finals(self) -> Iterator[None]:
        """Count an attempt at the finals of the job."""
        if not self._counts:
            yield
            return
        sessions = self._context.sessions
        with sessions.begin() as session:
            attempts.begin_job(session, self._job_id)
        has_ended = False
        try:
            yield
            has_ended = True
        finally:
            try:
                with sessions.begin() as session:
                    attempts.end_job(session, self._job_id, clear=has_ended)
            except FATAL_DB_ERRORS:
                self._context.unsettled.add_job(self._job_id)
