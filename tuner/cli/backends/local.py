"""Jobs and records out of a database that this machine reaches."""

from collections.abc import Callable
from typing import IO, TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from records import jobs, log, submissions, tasks
from records.errors import BadLog
from records.models import Job, JobState, Target, Task, Workload
from tuner.cli.backends.base import no_such_job
from tuner.context import Context
from tuner.errors import RequestError
from tuner.queries import jobs as job_queries
from tuner.queries import picks as pick_queries
from tuner.queries import records as record_queries
from tuner.replay import recording as recordings
from tuner.schemas import BestView, Imported, JobSummary, JobView, PickView, RecordView

if TYPE_CHECKING:
    from scheduler.replay import Recording

_MAX_ID = 2**31 - 1
_ALL = 10**9


class LocalBackend:
    """Reads a database, and writes to it where it is told to change something."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def jobs(self) -> list[JobSummary]:
        """See the contract."""
        with self._context.readers() as session:
            return job_queries.list_jobs(session, limit=_ALL)

    def find_job(self, job: int | None) -> JobSummary:
        """See the contract."""
        with self._context.readers() as session:
            return job_queries.summaries(session, [_find(session, job)])[0]

    def table(self, job: int) -> JobView:
        """See the contract."""
        with self._context.readers() as session:
            return job_queries.read_job(session, job)

    def picks(self, job: int, n_picks: int) -> list[PickView]:
        """See the contract."""
        with self._context.readers() as session:
            return pick_queries.read_picks(session, job, limit=n_picks)[::-1]

    def pause(self, job: int) -> JobSummary:
        """See the contract."""
        return self._changed(job, lambda session: _stop(session, job, "paused"))

    def cancel(self, job: int) -> JobSummary:
        """See the contract."""
        return self._changed(job, lambda session: _stop(session, job, "cancelled"))

    def resume(self, job: int) -> JobSummary:
        """See the contract."""
        return self._changed(job, lambda session: _resume(session, job))

    def raise_budget(self, job: int, trials: int | None, seconds: float | None) -> JobSummary:
        """See the contract."""
        return self._changed(
            job, lambda session: jobs.raise_budget(session, job, trials=trials, secs=seconds)
        )

    def set_priority(self, job: int, priority: int) -> JobSummary:
        """See the contract."""
        return self._changed(job, lambda session: jobs.set_priority(session, job, priority))

    def delete(self, job: int) -> None:
        """See the contract."""
        with self._context.sessions.begin() as session:
            found = _find(session, job)
            if not submissions.hide(session, found.id):
                raise RequestError(f"job {job} is {found.state}; tuner jobs cancel {job} stops it")

    def recording(self, job: int) -> "Recording":
        """See the contract."""
        with self._context.readers() as session:
            found = _find(session, job)
            summary = job_queries.summaries(session, [found])[0]
            name = summary.network or summary.name
            return recordings.record(session, name, tasks.tasks_of_job(session, found))

    def bests(self, workload: str | None, job: int | None) -> list[BestView]:
        """See the contract."""
        with self._context.readers() as session:
            _check_workload(session, workload)
            ours = None
            if job is not None:
                weighted = tasks.tasks_of_job(session, _find(session, job))
                ours = [task.task_id for task in weighted]
            return record_queries.read_bests(session, workload=workload, task_ids=ours)

    def records(
        self, workload: str | None, task: int | None, *, failed: bool, limit: int
    ) -> list[RecordView]:
        """See the contract."""
        with self._context.readers() as session:
            _check_workload(session, workload)
            if task is not None and session.get(Task, task) is None:
                raise RequestError(f"no task {task}; tuner records list shows their numbers")
            return record_queries.read_records(
                session, workload=workload, task=task, failed=failed, limit=limit
            )

    def export(self, stream: IO[str], target: int | None) -> int:
        """See the contract."""
        with self._context.readers() as session:
            _check_target(session, target)
            return log.export(session, stream, target)

    def import_(self, stream: IO[str], name: str) -> Imported:
        """See the contract."""
        try:
            with self._context.sessions.begin() as session:
                report = log.import_(session, stream)
        except BadLog as error:
            raise RequestError(f"cannot import {name}: {error}; nothing was kept") from error
        return Imported(added=report.n_added, known=report.n_known, torn=report.n_bad)

    def _changed(self, job: int, change: Callable[[Session], object]) -> JobSummary:
        """Change a job that exists, and return what it is now."""
        with self._context.sessions.begin() as session:
            _find(session, job)
            change(session)
        return self.find_job(job)


def _find(session: Session, job: int | None) -> Job:
    found = None
    if job is None:
        found = jobs.latest_job(session)
    elif 0 < job <= _MAX_ID:
        found = session.get(Job, job)
    if found is None or found.hidden:
        raise no_such_job(job, job_queries.list_jobs(session, limit=_ALL))
    return found


def _stop(session: Session, job: int, state: JobState) -> None:
    if not jobs.set_state(session, job, state, only_from=("queued", "running", "paused")):
        raise RequestError(f"job {job} is {jobs.get_job(session, job).state}")


def _resume(session: Session, job: int) -> None:
    found = jobs.get_job(session, job)
    if not found.submission:
        raise RequestError(
            f"job {job} is one of the command line: "
            "tuner tune with the same network goes on with it"
        )
    if not submissions.resume(session, job):
        raise RequestError(f"job {job} is {found.state}")


def _check_workload(session: Session, workload: str | None) -> None:
    if workload is None:
        return
    # PostgreSQL refuses NUL and lone surrogates in any text, even one to compare with.
    known = (
        workload.isprintable()
        and session.scalars(select(Workload.id).where(Workload.hash == workload).limit(1)).first()
    )
    if not known:
        raise RequestError(f"no workload {workload!r}; tuner tasks MODEL lists hashes")


def _check_target(session: Session, target: int | None) -> None:
    known = list(session.scalars(select(Target).order_by(Target.id)))
    if target is not None and target not in [each.id for each in known]:
        names = "; ".join(
            f"{each.id} ({each.device.get('name', 'an unnamed device')})" for each in known
        )
        raise RequestError(f"no target {target}; known are {names or 'none yet'}")
