"""Contract of the access to jobs and records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal, Protocol

from tuner.errors import RequestError
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

Action = Literal["pause", "cancel", "resume", "release"]
MAX_ID = 2**31 - 1
_MAX_LISTED = 10


@dataclass(frozen=True)
class WorkloadFilter:
    """Workloads by the beginning of a hash and a part of the name; None for all."""

    hash: str | None = None
    name: str | None = None


class Backend(Protocol):
    """Jobs and records of one database, reached directly or through a server.

    A request for something that does not exist raises a RequestError that names what exists.
    """

    def jobs(self, tags: Sequence[str] = ()) -> list[JobSummary]:
        """Return all jobs, or those with all of some tags, newest first."""

    def find_job(self, job: int | None) -> JobSummary:
        """Return a job by its number; None stands for the one that changed last."""

    def wait(self, job: int, timeout_secs: float) -> JobSummary:
        """Return a job once it has ended or is paused, or after some seconds as it is then."""

    def table(self, job: int) -> JobView:
        """Return the task scheduler table of a job."""

    def picks(self, job: int, n_picks: int) -> list[PickView]:
        """Return the last picks of a job in their sequence."""

    def history(self, job: int) -> HistoryView:
        """Return the latency of a job over its trials."""

    def failures(self, job: int) -> list[FailureView]:
        """Return how the trials of a job failed, the most frequent way first."""

    def compare(self, a: int, b: int) -> JobComparison:
        """Compare two jobs, by what each of them measured."""

    def act(self, job: int, action: Action) -> JobSummary:
        """Pause or cancel a job after its running round, resume it, or release it."""

    def raise_budget(self, job: int, trials: int | None, seconds: float | None) -> JobSummary:
        """Raise the existing limits of a job; lower ones have no effect."""

    def set_priority(self, job: int, priority: int) -> JobSummary:
        """Change the share of device time that a job gets."""

    def label(self, job: int, tags: Sequence[str] | None, note: str | None) -> JobSummary:
        """Replace the tags of a job, its note, or both; None changes nothing."""

    def delete(self, job: int) -> None:
        """Hide a job that does not run; its records stay."""

    def recording(self, job: int) -> "Recording":
        """Return the latency curves of a job's tasks."""

    def bests(self, workloads: WorkloadFilter, job: int | None) -> list[BestView]:
        """Return the best record of every task, optionally of one job."""

    def records(
        self, workloads: WorkloadFilter, task: int | None, *, failed: bool, limit: int
    ) -> list[RecordView]:
        """Return at most ``limit`` measure records, newest first."""

    def record(self, record: int) -> RecordDetails:
        """Return a record by its number."""

    def export(self, stream: IO[str], target: int | None) -> int:
        """Write the records of one target, or all, as JSON lines; return their number."""

    def import_(self, stream: IO[str], name: str, *, trust: bool) -> Imported:
        """Read all records of a stream of JSON lines, or none; errors call it ``name``.

        They are claims, unless the stream is trusted.
        """


def no_such_job(job: int | None, jobs: Sequence[JobSummary]) -> RequestError:
    """Return the error for an unknown job; it names the existing ones."""
    if not jobs:
        return RequestError("there are no jobs yet; create one with `tuner tune MODEL`")
    names = [
        f"{summary.id} ({summary.network or summary.name}, {summary.state})" for summary in jobs
    ]
    n_more = len(jobs) - _MAX_LISTED
    more = f" and {n_more} older ones" if n_more > 0 else ""
    return RequestError(f"no job {job}; known jobs: {', '.join(names[:_MAX_LISTED])}{more}")


def no_such_record(record: int) -> RequestError:
    """Return the error for an unknown record."""
    return RequestError(f"no record {record}; `tuner records list` shows the numbers")
