"""Response times of the dashboard's page of a job with a million measure records.

Generates one job of 200 tasks into an SQLite file and a private PostgreSQL server. The page and
each resource that it loads are requested cold (the API and the database just started, their files
not in memory), repeatedly without a change, and repeatedly with a new event before every request.
Prints one JSON line for each database.

    python -m benchmarks.job_page --records 1000000 --dir /var/tmp/job-page --keep
"""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from benchmarks import _databases, _filling, _services
from benchmarks._databases import KINDS
from benchmarks._latencies import described, timed
from records import database, events

_GOAL_MS = 300.0
_N_TASKS = 200
_PATHS = {
    "page": "/jobs/1",
    "tasks": "/api/v1/jobs/1/tasks",
    "history": "/api/v1/jobs/1/history",
    "picks": "/api/v1/jobs/1/picks",
    "jobs": "/api/v1/jobs",
}


def main() -> None:
    """Run the requests of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument(
        "--requests", type=int, default=100, help="number for each address and each way"
    )
    parser.add_argument("--databases", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument(
        "--dir", type=Path, help="folder of the databases [default: a temporary one]"
    )
    parser.add_argument("--keep", action="store_true", help="keep them for another run")
    arguments = parser.parse_args()
    _services.exit_on_sigterm()
    folder = arguments.dir or Path(tempfile.mkdtemp(prefix="job-page-"))
    filling = _filling.Filling(arguments.records, _N_TASKS, events=True)
    try:
        for kind in arguments.databases:
            result = _run(kind, folder, filling, arguments.requests)
            print(json.dumps({"benchmark": "job_page", "database": kind, **result}), flush=True)
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)


def _run(kind: str, folder: Path, filling: _filling.Filling, n_requests: int) -> dict[str, Any]:
    with _databases.running(kind, folder / kind) as url:
        _filling.open_filled(url, filling).dispose()
    result: dict[str, Any] = {
        name: {"cold_ms": _cold(kind, folder, path)} for name, path in _PATHS.items()
    }
    with (
        _databases.running(kind, folder / kind) as url,
        _services.api(url, folder / f"{kind}-data") as (service, _),
        httpx.Client(base_url=service, timeout=60.0) as client,
    ):
        tell = _teller(url)
        for name, path in _PATHS.items():
            answer = client.get(path).raise_for_status()
            result[name]["bytes"] = len(answer.content)
            result[name]["unchanged"] = described(_ask(client, path, n_requests))
            result[name]["changed"] = described(_ask(client, path, n_requests, tell))
    page = result["page"]
    worst = max(page["cold_ms"], page["changed"]["p99_ms"])
    return {
        "records": filling.n_records,
        "picks": filling.n_picks,
        **result,
        "goal_ms": _GOAL_MS,
        "reached": worst < _GOAL_MS,
    }


def _cold(kind: str, folder: Path, path: str) -> float:
    """Return milliseconds of one request: processes just started, files not in memory."""
    _forget(folder / kind)
    with (
        _databases.running(kind, folder / kind) as url,
        _services.api(url, folder / f"{kind}-data") as (service, _),
        httpx.Client(base_url=service, timeout=60.0) as client,
    ):
        client.get("/healthz").raise_for_status()
        (secs,) = timed(lambda asked: client.get(asked).raise_for_status(), [path])
    return round(secs * 1e3, 1)


def _forget(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
    for path in folder.rglob("*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _teller(url: str) -> Callable[[], None]:
    """Return a function that adds one event to the job, as every trial does."""
    sessions = database.sessions(database.open_database(url))

    def tell() -> None:
        with sessions.begin() as session:
            events.add_event(session, 1, "status", {"phase": "measuring", "task_id": None})

    return tell


def _ask(
    client: httpx.Client, path: str, n_requests: int, before: Callable[[], None] | None = None
) -> list[float]:
    samples = []
    for _ in range(n_requests):
        if before is not None:
            before()
        samples += timed(lambda asked: client.get(asked).raise_for_status(), [path])
    return samples


if __name__ == "__main__":
    main()
