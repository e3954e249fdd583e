"""Jobs that were asked for: from a row that waits to a session that runs."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from sqlalchemy.exc import DataError
from sqlalchemy.orm import Session

from records import events, jobs, submissions
from records.models import Job, JobState
from scheduler.budget import Budget
from tuner.context import Context
from tuner.devices.target_cache import DescribeTarget
from tuner.errors import TunerError
from tuner.jobs.options import default_trials
from tuner.jobs.preparation import Prepared
from tuner.jobs.requests import options_of
from tuner.jobs.submission import request_of
from tuner.service import logs
from tuner.service.loading import Limits, load_all
from tuner.tuning.context import TuningContext
from tuner.tuning.job_queue import SessionFactory
from tuner.tuning.session import TuningSession
from tuner.tuning.status import TuningStatus
from tuner.tuning.storage_retry import FATAL_DB_ERRORS

_LOG = logging.getLogger(__name__)

# What a database says of a text that it cannot store, and what is stored instead.
UNSTORABLE = (DataError, UnicodeError)
NO_MESSAGE = "it failed for a reason that cannot be stored; the worker's log has it"

Result = TypeVar("Result")
# Told which job is worked on, and how.
Told = Callable[[int, str], None]


class JobLoader:
    """Prepares the jobs of the service, one at a time, in the order they came in.

    A job whose model is bad fails with what is wrong with it; nothing else happens.

    Args:
        context: Settings and database.
        limits: What loading a model may take.
        tell: Told which job is worked on.
        describe: Says what targets are on devices elsewhere; None: they are this machine's.
    """

    def __init__(
        self,
        context: Context,
        limits: Limits,
        tell: Told,
        describe: DescribeTarget | None = None,
    ) -> None:
        self._context = context
        self._limits = limits
        self._tell = tell
        self._describe = describe
        self._claimed: set[int] = set()

    def take(self, running: Collection[int]) -> Sequence[SessionFactory]:
        """Load the model of the next job that waits; what is returned opens its session.

        Args:
            running: Jobs that were taken before and are still under way.

        Returns:
            One opening; none if no job waits, or if there is nothing to measure.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        job = self._claim(running)
        if job is None:
            return ()
        self._claimed.add(job.id)
        _LOG.info("loading the model", extra={"job": job.id})
        self._tell(job.id, "loading the model")
        loaded = self._guard(job.id, lambda: self._prepare(job))
        if loaded is None:
            self._claimed.discard(job.id)
            return ()
        fresh, prepared = loaded

        def opening(tuning_context: TuningContext) -> TuningSession | None:
            self._claimed.discard(job.id)
            return self._guard(job.id, lambda: self._open(tuning_context, fresh, prepared))

        return (opening,)

    def give_back(self) -> None:
        """Queue the job again whose model is being loaded: nobody waits for that any more."""
        for job_id in list(self._claimed):
            self._end(job_id, "queued")

    def _guard(self, job_id: int, work: Callable[[], Result | None]) -> Result | None:
        """Do a part of the work on a job; what goes wrong fails the job, and gives None."""
        with logs.bound(job=job_id):
            try:
                return work()
            except FATAL_DB_ERRORS:
                raise
            except TunerError as error:
                _LOG.warning("failed: %s", error)
                self._fail(job_id, str(error))
            except Exception as error:
                _LOG.exception("failed")
                self._end(job_id, "failed", f"internal error: {type(error).__name__}")
            except BaseException:
                self._end(job_id, "queued")
                raise
        return None

    def _claim(self, running: Collection[int]) -> Job | None:
        """Mark the next job as running, unless somebody stopped it meanwhile."""
        with self._context.readers() as session:
            waiting = [job.id for job in submissions.waiting(session) if job.id not in running]
        for job_id in waiting:
            with self._context.sessions.begin() as session:
                if jobs.set_state(session, job_id, "running", only_from=("queued", "running")):
                    _say_loading(session, job_id)
                    return session.get_one(Job, job_id, populate_existing=True)
        return None

    def _prepare(self, job: Job) -> tuple[Job, Prepared] | None:
        """Return a job as it is when its model is loaded; None if there is nothing to measure."""
        request = request_of(job.request or {}, self._context.settings.data_dir)
        prepared = load_all(self._context, request.models, self._limits, self._describe)
        fresh = self._assign(job.id, prepared)
        return None if fresh is None else (fresh, prepared)

    def _assign(self, job_id: int, prepared: Prepared) -> Job | None:
        """Store what a job turned out to be about; returns it as it is now.

        One that still wants its tasks alone is done, and None is returned.
        """
        with self._context.sessions.begin() as session:
            job = submissions.assign(session, job_id, prepared.network_id, prepared.target_id, {})
            if job.budget_trials != 0:
                return job
            jobs.set_state(session, job_id, "done", only_from=("running",))
            return None

    def _open(self, tuning_context: TuningContext, job: Job, prepared: Prepared) -> TuningSession:
        # Read again: it may have been asked for with other options while its model was loaded.
        request = request_of(job.request or {}, self._context.settings.data_dir)
        asked = (job.budget_trials, job.budget_secs)
        budget = Budget(*asked) if any(asked) else Budget(default_trials(prepared))
        checked = options_of(replace(request, trials=1, seconds=None))
        options = replace(checked, budget=budget, submission=job.submission)

        def watch(status: TuningStatus) -> None:
            self._tell(job.id, status.phase)

        return TuningSession(tuning_context, prepared, options, watch)

    def _fail(self, job_id: int, message: str) -> None:
        try:
            self._end(job_id, "failed", message)
        except UNSTORABLE:
            _LOG.exception("the message cannot be stored")
            self._end(job_id, "failed", NO_MESSAGE)

    def _end(self, job_id: int, state: JobState, message: str | None = None) -> None:
        with self._context.sessions.begin() as session:
            jobs.set_state(session, job_id, state, message, only_from=("running",))


def _say_loading(session: Session, job_id: int) -> None:
    before = events.status_of(session, job_id)
    spent = 0 if before is None else before.spent_trials
    events.set_status(session, job_id, phase="loading the model", task_id=None, spent_trials=spent)
