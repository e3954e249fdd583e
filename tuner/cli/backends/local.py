"""Access to jobs and records in a database."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from records import jobs, labels, tasks
from records.errors import BadLog, NoSuchRow
from records.logs import measure_log
from records.models import Job, JobState, Target, Task
from records.service import submissions
from records.targets import device_name
from records.tuning import attempts, job_states
from tuner.cli.backends import MAX_ID, Action, WorkloadFilter, no_such_job, no_such_record
from tuner.context import Context
from tuner.errors import RequestError
from tuner.formatting import short_name
from tuner.job_replay import recording as recordings
from tuner.queries import history
from tuner.queries import jobs as job_queries
from tuner.queries import picks as pick_queries
from tuner.queries import records as record_queries
from tuner.queries.comparison import compare_jobs
from tuner.schemas import (
    BestView,
    FailureView,
    HistoryView,
    Imported,
    JobComparison,
    JobSummary,
    JobView,
    PickView,
    RecordDetails,
    RecordView,
)

if TYPE_CHECKING:
    from scheduler.replay import Recording

_ALL = 10**9
_POLL_INTERVAL_SECS = 0.5


class LocalBackend:
    """Jobs and records of a database.

    A request for something that does not exist raises a RequestError that names what exists.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def jobs(self, tags: Sequence[str] = ()) -> list[JobSummary]:
        """Return all jobs, or those with all of some tags, newest first."""
        with self._context.readers() as session:
            return job_queries.list_jobs(session, tags=tags, limit=_ALL)

    def find_job(self, job: int | None) -> JobSummary:
        """Return a job by its number; None stands for the one that changed last."""
        with self._context.readers() as session:
            return job_queries.summaries(session, [_find(session, job)])[0]

    def wait(self, job: int, timeout_secs: float) -> JobSummary:
        """Return a job once it has ended or is paused, or after some seconds as it is then."""
        end = time.monotonic() + timeout_secs
        while True:
            summary = self.find_job(job)
            left = end - time.monotonic()
            if summary.state not in ("queued", "running") or left <= 0:
                return summary
            time.sleep(min(_POLL_INTERVAL_SECS, left))

    def table(self, job: int) -> JobView:
        """Return the task scheduler table of a job."""
        with self._context.readers() as session:
            return job_queries.read_job(session, job)

    def picks(self, job: int, n_picks: int) -> list[PickView]:
        """Return the last picks of a job in their sequence."""
        with self._context.readers() as session:
            return pick_queries.read_picks(session, job, limit=n_picks)[::-1]

    def history(self, job: int) -> HistoryView:
        """Return the latency of a job over its trials."""
        with self._context.readers() as session:
            return history.read_history(session, job)

    def failures(self, job: int) -> list[FailureView]:
        """Return how the trials of a job failed, the most frequent way first."""
        with self._context.readers() as session:
            return history.read_failures(session, job)

    def compare(self, a: int, b: int) -> JobComparison:
        """Compare two jobs, by what each of them measured."""
        with self._context.readers() as session:
            return compare_jobs(session, _find(session, a).id, _find(session, b).id)

    def act(self, job: int, action: Action) -> JobSummary:
        """Pause or cancel a job after its running round, resume it, or release it."""
        return self._changed(job, lambda session: _ACTIONS[action](session, job))

    def raise_budget(self, job: int, trials: int | None, seconds: float | None) -> JobSummary:
        """Raise the existing limits of a job; lower ones have no effect."""
        return self._changed(
            job, lambda session: jobs.raise_budget(session, job, trials=trials, secs=seconds)
        )

    def set_priority(self, job: int, priority: int) -> JobSummary:
        """Change the share of device time that a job gets."""
        return self._changed(job, lambda session: jobs.set_priority(session, job, priority))

    def label(self, job: int, tags: Sequence[str] | None, note: str | None) -> JobSummary:
        """Replace the tags of a job, its note, or both; None changes nothing."""
        return self._changed(job, lambda session: labels.edit(session, job, tags=tags, note=note))

    def delete(self, job: int) -> None:
        """Hide a job that does not run; its records stay."""
        with self._context.sessions.begin() as session:
            row = _find(session, job)
            if not submissions.hide(session, row.id):
                state = job_states.state_of(session, row.id)
                raise RequestError(
                    f"job {job} is {state}; stop it first with `tuner jobs cancel {job}`"
                )

    def recording(self, job: int) -> "Recording":
        """Return the latency curves of a job's tasks."""
        with self._context.readers() as session:
            row = _find(session, job)
            summary = job_queries.summaries(session, [row])[0]
            name = summary.network or summary.name
            return recordings.record(session, name, tasks.tasks_of_job(session, row))

    def bests(self, workloads: WorkloadFilter, job: int | None) -> list[BestView]:
        """Return the best record of every task, optionally of one job."""
        with self._context.readers() as session:
            _check_workload(session, workloads.hash)
            task_ids = None
            if job is not None:
                weighted = tasks.tasks_of_job(session, _find(session, job))
                task_ids = [task.task_id for task in weighted]
            return record_queries.read_bests(
                session, workload=workloads.hash, name=workloads.name, task_ids=task_ids
            )

    def records(
        self, workloads: WorkloadFilter, task: int | None, *, failed: bool, limit: int
    ) -> list[RecordView]:
        """Return at most ``limit`` measure records, newest first."""
        with self._context.readers() as session:
            _check_workload(session, workloads.hash)
            if task is not None and session.get(Task, task) is None:
                raise RequestError(f"no task {task}; `tuner records list` shows the numbers")
            return record_queries.read_records(
                session,
                workload=workloads.hash,
                name=workloads.name,
                task=task,
                failed=failed,
                limit=limit,
            )

    def record(self, record: int) -> RecordDetails:
        """Return a record by its number."""
        with self._context.readers() as session:
            try:
                return record_queries.read_record(session, record)
            except NoSuchRow as error:
                raise no_such_record(record) from error

    def export(self, stream: IO[str], target: int | None) -> int:
        """Write the records of one target, or all, as JSON lines; return their number."""
        with self._context.readers() as session:
            rows = list(session.scalars(select(Target).order_by(Target.id)))
            if target is not None and target not in [row.id for row in rows]:
                names = "; ".join(f"{row.id} ({device_name(row.spec, row.device)})" for row in rows)
                raise RequestError(f"no target {target}; known targets: {names or 'none yet'}")
            return measure_log.export(session, stream, target)

    def import_(self, stream: IO[str], name: str, *, trust: bool) -> Imported:
        """Read all records of a stream of JSON lines, or none; errors call it ``name``.

        They are claims, unless the stream is trusted.
        """
        try:
            with self._context.sessions.begin() as session:
                report = measure_log.import_(session, stream, trusted=trust)
        except BadLog as error:
            raise RequestError(f"cannot import {name}: {error}; nothing was imported") from error
        return record_queries.summarise_import(report)

    def _changed(self, job: int, change: Callable[[Session], object]) -> JobSummary:
        """Change an existing job and return its new state."""
        with self._context.sessions.begin() as session:
            _find(session, job)
            change(session)
        return self.find_job(job)


def _find(session: Session, job: int | None) -> Job:
    row = jobs.find_job(session, job) if job is None or 0 < job <= MAX_ID else None
    if row is None:
        raise no_such_job(job, job_queries.list_jobs(session, limit=_ALL))
    return row


def _stop(session: Session, job: int, state: JobState) -> None:
    if not jobs.set_state(session, job, state, only_from=("queued", "running", "paused")):
        raise RequestError(f"job {job} is {jobs.get_job(session, job).state}")


def _resume(session: Session, job: int) -> None:
    row = jobs.get_job(session, job)
    if not row.submission:
        raise RequestError(
            f"job {job} is not a job of the service; run `tuner tune` with the same network to "
            "continue it"
        )
    if row.quarantined:
        raise RequestError(f"job {job} is quarantined; release it with `tuner jobs release {job}`")
    if not submissions.resume(session, job, by_operator=True):
        raise RequestError(f"job {job} is {job_states.state_of(session, job)}")


def _release(session: Session, job: int) -> None:
    if not attempts.release(session, job):
        raise RequestError(f"neither job {job} nor a build of it is quarantined")


_ACTIONS: dict[Action, Callable[[Session, int], None]] = {
    "pause": partial(_stop, state="paused"),
    "cancel": partial(_stop, state="cancelled"),
    "resume": _resume,
    "release": _release,
}


def _check_workload(session: Session, workload: str | None) -> None:
    if workload is None:
        return
    # PostgreSQL rejects NUL and lone surrogates in any text, even in a comparison.
    names = tasks.names_from(session, workload) if workload.isprintable() else []
    if not names:
        raise RequestError(f"no workload {workload!r}; `tuner tasks MODEL` lists the hashes")
    if len(names) > 1:
        raise RequestError(
            f"workloads {short_name(names[0])} and {short_name(names[1])} begin with {workload!r}; "
            "give more digits"
        )
