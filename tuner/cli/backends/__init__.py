"""Access to jobs and records, in a database or on a server."""

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from tuner.cli import connection
from tuner.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tuner.cli.backends.local import LocalBackend
    from tuner.cli.backends.remote import RemoteBackend
    from tuner.schemas import JobSummary

    Backend: TypeAlias = LocalBackend | RemoteBackend

Action = Literal["pause", "cancel", "resume", "release"]
MAX_ID = 2**31 - 1
_MAX_LISTED = 10


@dataclass(frozen=True)
class WorkloadFilter:
    """Workloads by the beginning of a hash and a part of the name; None for all."""

    hash: str | None = None
    name: str | None = None


@contextmanager
def open_backend(database: str | None, data_dir: Path | None) -> "Iterator[Backend]":
    """Open the server that was chosen, or the database of this machine without one.

    Raises:
        RequestError: If a setting of this machine is given together with a server.
    """
    if connection.chosen() is None:
        from tuner.cli.backends.local import LocalBackend
        from tuner.context import open_context

        with open_context(database, data_dir) as context:
            yield LocalBackend(context)
        return
    from tuner.cli.backends.remote import RemoteBackend

    with connection.connect({"database": database, "data_dir": data_dir}) as client:
        yield RemoteBackend(client)


def no_such_job(job: int | None, jobs: "Sequence[JobSummary]") -> RequestError:
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
