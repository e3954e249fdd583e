"""Access to jobs and records through a server."""

import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO, cast

from tuner.cli.backends import MAX_ID, Action, WorkloadFilter, no_such_job, no_such_record
from tuner.client import NotFoundError, RequestRejected, TunerClient
from tuner.errors import RequestError
from tuner.job_replay import recording as recordings
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


class RemoteBackend:
    """Jobs and records of a server; see :class:`tuner.cli.backends.local.LocalBackend`."""

    def __init__(self, client: TunerClient) -> None:
        self._client = client

    def jobs(self, tags: Sequence[str] = ()) -> list[JobSummary]:
        return list(self._client.jobs(tags=tags))

    def find_job(self, job: int | None) -> JobSummary:
        if job is not None:
            return self._existing(job, lambda: self._client.job(job).job)
        newest = next(self._client.jobs(sort="-updated"), None)
        if newest is None:
            raise no_such_job(None, [])
        return newest

    def wait(self, job: int, timeout_secs: float) -> JobSummary:
        return self._existing(job, lambda: self._client.wait(job, timeout_secs))

    def table(self, job: int) -> JobView:
        return self._client.table(job)

    def picks(self, job: int, n_picks: int) -> list[PickView]:
        return list(islice(self._client.picks(job), n_picks))[::-1]

    def history(self, job: int) -> HistoryView:
        return self._client.history(job)

    def failures(self, job: int) -> list[FailureView]:
        return self._client.failures(job)

    def compare(self, a: int, b: int) -> JobComparison:
        return self._client.compare(self.find_job(a).id, self.find_job(b).id)

    def act(self, job: int, action: Action) -> JobSummary:
        client = self._client
        calls = {
            "pause": client.pause,
            "cancel": client.cancel,
            "resume": client.resume,
            "release": client.release,
        }
        return self._existing(job, lambda: calls[action](job))

    def raise_budget(self, job: int, trials: int | None, seconds: float | None) -> JobSummary:
        return self._existing(
            job, lambda: self._client.raise_budget(job, trials=trials, seconds=seconds)
        )

    def set_priority(self, job: int, priority: int) -> JobSummary:
        return self._existing(job, lambda: self._client.set_priority(job, priority))

    def label(self, job: int, tags: Sequence[str] | None, note: str | None) -> JobSummary:
        return self._existing(job, lambda: self._client.label(job, tags=tags, note=note))

    def delete(self, job: int) -> None:
        def delete() -> JobSummary:
            summary = self._client.job(job).job
            self._client.delete(job)
            return summary

        self._existing(job, delete)

    def recording(self, job: int) -> "Recording":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"job-{job}.jsonl.gz"
            path.write_bytes(self._client.recording(job))
            return recordings.read(path)

    def bests(self, workloads: WorkloadFilter, job: int | None) -> list[BestView]:
        job_id = None if job is None else self.find_job(job).id
        return self._client.best_records(workload=workloads.hash, name=workloads.name, job=job_id)

    def records(
        self, workloads: WorkloadFilter, task: int | None, *, failed: bool, limit: int
    ) -> list[RecordView]:
        rows = self._client.list_records(
            workload=workloads.hash, name=workloads.name, task=task, failed=failed
        )
        return list(islice(rows, limit))

    def record(self, record: int) -> RecordDetails:
        try:
            return self._client.record(record)
        except NotFoundError as error:
            raise no_such_record(record) from error

    def export(self, stream: IO[str], target: int | None) -> int:
        n_records = 0
        for line in self._client.export_records(target=target):
            stream.write(line)
            # Quotes inside a JSON string are escaped, so this is never part of one.
            n_records += '"kind":"record"' in line
        return n_records

    def import_(self, stream: IO[str], name: str, *, trust: bool) -> Imported:
        try:
            return self._client.import_records(cast("TextIO", stream).buffer, trust=trust)
        except RequestRejected as error:
            raise RequestError(f"cannot import {name}: {error}") from error

    def _existing(self, job: int, request: Callable[[], JobSummary]) -> JobSummary:
        """Send a request about a job; an unknown job raises an error that lists the known ones."""
        if 0 < job <= MAX_ID:
            try:
                return request()
            except NotFoundError:
                pass
        raise no_such_job(job, self.jobs())
