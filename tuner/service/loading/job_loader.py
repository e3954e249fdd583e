"""Loading of submitted jobs: from a row in the queue to a session that can be admitted."""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.exc import DataError

from records import jobs, targets
from records.models import Job, JobState
from records.service import submissions
from records.tuning import attempts, events
from scheduler.fairness import Turns
from tuner.context import Context
from tuner.devices.target_cache import DescribeTarget
from tuner.errors import TunerError
from tuner.jobs.comparability import Incomparable, compared_settings
from tuner.jobs.models.argument_sizes import check_arguments
from tuner.jobs.objective import with_weights
from tuner.jobs.preparation import Prepared, narrow
from tuner.jobs.submission import request_of
from tuner.service import logs
from tuner.service.loading.limited_loading import ProcessLimits, again_if_killed, load_all
from tuner.tuning.context import TuningContext
from tuner.tuning.job.session_options import SessionOptions
from tuner.tuning.job.suspects import UnsettledAttempts
from tuner.tuning.session import TuningSession
from tuner.tuning.status import TuningStatus
from tuner.tuning.writing.storage_retry import FATAL_DB_ERRORS

_LOG = logging.getLogger(__name__)

# Errors of a database that cannot store a text, and the text that is stored instead.
UNSTORABLE = (DataError, UnicodeError)
NO_MESSAGE = "it failed for a reason that cannot be stored; the worker's log has it"

Result = TypeVar("Result")
# Receives the job that is worked on, None for no job, and the activity in words.
ActivityCallback = Callable[[int | None, str], None]


@dataclass(frozen=True)
class LoadedJob:
    """A job whose model was loaded and split into tasks."""

    job: Job
    prepared: Prepared


class JobLoader:
    """Claims, loads and opens the jobs of the service.

    A job whose model cannot be loaded fails with a message that says why; other jobs are not
    affected. :meth:`claim` and :meth:`load` block and may run in threads, :meth:`load` in several
    at once; :meth:`open` and :meth:`requeue` belong in the thread of the event loop.

    Args:
        context: Settings and database.
        limits: Limits on the loading of a model.
        on_activity: Receives the job that is worked on.
        unsettled: Attempts that could not be taken back without a database.
        describe: Describes targets of devices on other machines; None for this machine's.
    """

    def __init__(
        self,
        context: Context,
        limits: ProcessLimits,
        on_activity: ActivityCallback,
        unsettled: UnsettledAttempts | None = None,
        describe: DescribeTarget | None = None,
    ) -> None:
        self._context = context
        self._limits = limits
        self._on_activity = on_activity
        self._unsettled = unsettled or UnsettledAttempts()
        self._describe = describe
        self._claimed: set[int] = set()
        self._turns = Turns()

    def claim(
        self,
        busy: Collection[int],
        *,
        with_suspects: bool = True,
        served_owners: Collection[str] = (),
        may_begin: Callable[[], bool] = lambda: True,
    ) -> Job | None:
        """Mark the next waiting job as running, and return it; None if no job waits.

        Owners take turns, so that one with many models holds up no other; each owner's oldest job
        comes first.

        A job that is marked as running but is not busy was left by an earlier coordinator, and
        waits as well. One that too many processes died over is quarantined instead.

        Args:
            busy: Ids of the jobs that this process loads or tunes.
            with_suspects: False to leave out jobs that several processes died over.
            served_owners: Owners whose jobs wait all the same.
            may_begin: Called before a job is marked; all wait if it returns False.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        with self._context.readers() as session:
            claimable = [
                job
                for job in submissions.claimable(session)
                if job.id not in busy and job.owner not in served_owners
            ]
        for job in self._turns.ordered(claimable, lambda job: job.owner):
            if job.attempts >= attempts.MAX_DEATHS:
                self._quarantine(job.id)
                continue
            if job.attempts >= attempts.SUSPECT_DEATHS and not with_suspects:
                continue
            if not may_begin():
                return None
            self._claimed.add(job.id)
            owner = job.owner
            with self._context.sessions.begin() as session:
                # The job may have been stopped since it was read.
                if jobs.set_state(session, job.id, "running", only_from=("queued", "running")):
                    self._turns.serve(owner)
                    status = events.status_of(session, job.id)
                    spent = 0 if status is None else status.spent_trials
                    events.set_status(
                        session, job.id, phase="loading the model", task_id=None, spent_trials=spent
                    )
                    attempts.begin_job(session, job.id)
                    return session.get_one(Job, job.id, populate_existing=True)
            self._claimed.discard(job.id)
        return None

    def _quarantine(self, job_id: int) -> None:
        _LOG.error("quarantined", extra={"job": job_id})
        with self._context.sessions.begin() as session:
            attempts.quarantine_job(session, job_id, "loading the model or confirming the winners")

    def load(self, job: Job) -> LoadedJob | None:
        """Load the model of a claimed job, and store its tasks.

        Returns:
            None if the job failed, or if it asked for its tasks alone and is done.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        _LOG.info("loading the model", extra={"job": job.id})
        self._on_activity(job.id, "loading the model")
        loaded = self._guard(job.id, lambda: self._load(job))
        if loaded is None:
            self._claimed.discard(job.id)
        return loaded

    def is_wanted(self, job_id: int) -> bool:
        """Return whether a job that is being loaded was neither cancelled, paused nor deleted.

        Raises:
            sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        with self._context.readers() as session:
            return jobs.is_running(session, job_id)

    def open(self, tuning_context: TuningContext, loaded: LoadedJob) -> TuningSession | None:
        """Open the session of a loaded job; None if opening failed.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        self._claimed.discard(loaded.job.id)
        return self._guard(loaded.job.id, lambda: self._open(tuning_context, loaded))

    def requeue(self) -> None:
        """Put the jobs that are being loaded back into the queue.

        Raises:
            LeaseLost, sqlalchemy.exc.OperationalError, ...: If the database is lost.
        """
        claimed, self._claimed = list(self._claimed), set()
        for i, job_id in enumerate(claimed):
            try:
                self._end(job_id, "queued")
            except FATAL_DB_ERRORS:
                for lost in claimed[i:]:
                    self._unsettled.add_job(lost)
                raise

    def _guard(self, job_id: int, work: Callable[[], Result | None]) -> Result | None:
        """Do a part of the work on a job; an error fails the job, and the result is None."""
        with logs.bound(job=job_id):
            try:
                return work()
            except FATAL_DB_ERRORS:
                raise
            except TunerError as error:
                if not self.is_wanted(job_id):
                    _LOG.info("stopped: %s", error)
                else:
                    _LOG.warning("failed: %s", error)
                message = str(error)
                try:
                    self._end(job_id, "failed", message)
                except UNSTORABLE:
                    _LOG.exception("the message cannot be stored")
                    self._end(job_id, "failed", NO_MESSAGE)
            except Exception as error:
                _LOG.exception("failed")
                self._end(job_id, "failed", f"internal error: {type(error).__name__}")
            except BaseException:
                self._end(job_id, "queued")
                raise
        return None

    def _load(self, job: Job) -> LoadedJob | None:
        request = request_of(job.request or {}, self._context.settings.data_dir)
        prepared = again_if_killed(
            lambda: load_all(self._context, request.models, self._limits, self._describe),
            lambda: self._begin_again(job.id),
        )
        prepared = narrow(self._context.sessions, prepared, request.spec.task)
        current = self._assign(job.id, prepared)
        if current is None:
            return None
        check_arguments(prepared.tasks, self._context.settings)
        return LoadedJob(current, prepared)

    def _begin_again(self, job_id: int) -> bool:
        """Count another attempt at a job, unless it was stopped or returned to the queue."""
        with self._context.sessions.begin() as session:
            if jobs.locked(session, job_id).state != "running":
                return False
            attempts.begin_job(session, job_id)
            return True

    def _assign(self, job_id: int, prepared: Prepared) -> Job | None:
        """Store the network and the target of a job, and return its row as it is now.

        A job whose budget is still 0 trials asked for its tasks alone: it is done, and None is
        returned.
        """
        with self._context.sessions.begin() as session:
            attempts.end_job(session, job_id)
            job = submissions.assign(session, job_id, prepared.network_id, prepared.target_id, {})
            if job.budget_trials != 0:
                return job
            jobs.set_state(session, job_id, "done", only_from=("running",))
            return None

    def _open(self, tuning_context: TuningContext, loaded: LoadedJob) -> TuningSession | None:
        job, prepared = loaded.job, loaded.prepared
        # The options of the row may have changed since the job was claimed.
        request = request_of(job.request or {}, self._context.settings.data_dir)
        # The limits of the row may have grown since the request was stored.
        limits = {"trials": job.budget_trials or None, "seconds": job.budget_secs}
        spec = with_weights(request.spec, prepared)
        spec = spec.model_copy(update=limits).with_default_budget(len(prepared.tasks))
        options = SessionOptions(
            spec,
            submission=job.submission,
            max_trials_per_round=self._context.settings.request_caps.max_trials_per_round,
        )

        def report_phase(status: TuningStatus) -> None:
            self._on_activity(job.id, status.phase)

        try:
            return TuningSession(tuning_context, prepared, options, report_phase)
        except Incomparable as error:
            if error.timed_with == compared_settings({}):
                raise
            # Set the records of a target apart that do not compare; the job is loaded again.
            _LOG.warning(
                "the records of target %d are set apart: %s", prepared.target_id, error.timed_with
            )
            with self._context.sessions.begin() as session:
                targets.set_apart(session, prepared.target_id, error.timed_with)
            self._end(job.id, "queued")
            return None

    def _end(self, job_id: int, state: JobState, message: str | None = None) -> None:
        with self._context.sessions.begin() as session:
            if jobs.locked(session, job_id).state == "queued":
                return  # it was given up, and its attempt taken back
            attempts.end_job(session, job_id, clear=state == "failed")
            jobs.set_state(session, job_id, state, message, only_from=("running",))
