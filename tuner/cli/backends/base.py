"""The contract of what commands read jobs and records from."""

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Protocol

from tuner.errors import RequestError
from tuner.schemas import BestView, Imported, JobSummary, JobView, PickView, RecordView

if TYPE_CHECKING:
    from scheduler.replay import Recording

_MAX_KNOWN = 10


class Backend(Protocol):
    """Jobs and records, wherever they are.

    What is asked for and is not there is a RequestError that says what is.
    """

    def jobs(self) -> list[JobSummary]:
        """Return all jobs, the newest first."""

    def find_job(self, job: int | None) -> JobSummary:
        """Return a job; None asks for the one that changed last."""

    def table(self, job: int) -> JobView:
        """Return the task scheduler table of a job."""

    def picks(self, job: int, n_picks: int) -> list[PickView]:
        """Return the last picks of a job, in sequence."""

    def pause(self, job: int) -> JobSummary:
        """Stop a job after its round; it may go on later."""

    def cancel(self, job: int) -> JobSummary:
        """Stop a job after its round."""

    def resume(self, job: int) -> JobSummary:
        """Let a job go on that was paused or cancelled, or that failed."""

    def raise_budget(self, job: int, trials: int | None, seconds: float | None) -> JobSummary:
        """Raise the limits that a job has; smaller ones change nothing."""

    def set_priority(self, job: int, priority: int) -> JobSummary:
        """Change how much of the device a job gets."""

    def delete(self, job: int) -> None:
        """Forget a job that does not run; what it measured stays."""

    def recording(self, job: int) -> "Recording":
        """Return the curves of a job's tasks."""

    def bests(self, workload: str | None, job: int | None) -> list[BestView]:
        """Return the best record of every task, of one workload or one job if they are named."""

    def records(
        self, workload: str | None, task: int | None, *, failed: bool, limit: int
    ) -> list[RecordView]:
        """Return measure records, the newest first, at most ``limit``."""

    def export(self, stream: IO[str], target: int | None) -> int:
        """Write the records of a target, or all, as JSON lines; return how many."""

    def import_(self, stream: IO[str], name: str) -> Imported:
        """Read JSON lines of records, all of them or none; ``name`` is that of their file."""


def no_such_job(job: int | None, known: Sequence[JobSummary]) -> RequestError:
    """Return an error that names the jobs there are."""
    if not known:
        return RequestError("there are no jobs yet: tuner tune MODEL makes one")
    names = [f"{each.id} ({each.network or each.name}, {each.state})" for each in known]
    n_more = len(known) - _MAX_KNOWN
    more = f" and {n_more} older ones" if n_more > 0 else ""
    return RequestError(f"no job {job}; known jobs: {', '.join(names[:_MAX_KNOWN])}{more}")
