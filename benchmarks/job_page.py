"""The dashboard's page of a job with a million measure records, and what the page asks for.

Generates one job of 200 tasks into an SQLite file and a PostgreSQL server of its own. Each
address is asked for cold (the API and the database just started, their files not in memory),
again and again as nothing changes, and again as every request finds a new event. Prints one
JSON line a database.

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
    """Run the requests that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=100, help="of each address, each way")
    parser.add_argument("--databases", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--dir", type=Path, help="where the databases are; a temporary folder")
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
    found: dict[str, Any] = {
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
            found[name]["bytes"] = len(answer.content)
            found[name]["unchanged"] = described(_ask(client, path, n_requests))
            found[name]["changed"] = described(_ask(client, path, n_requests, tell))
    page = found["page"]
    worst = max(page["cold_ms"], page["changed"]["p99_ms"])
    return {
        "records": filling.n_records,
        "picks": filling.n_picks,
        **found,
        "goal_ms": _GOAL_MS,
        "reached": worst < _GOAL_MS,
    }


def _cold(kind: str, folder: Path, path: str) -> float:
    """Ask once, milliseconds: processes just started, files not in memory."""
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
    """Ask the system to drop the files of a folder from its cache."""
    for path in folder.rglob("*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _teller(url: str) -> Callable[[], None]:
    """Return what makes the job one event newer, as every trial does."""
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
