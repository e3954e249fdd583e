"""Latency of best-record look-ups among ten million measure records, in the database and by REST.

Generates the records into an SQLite file and a private PostgreSQL server, then looks up
random workloads, one at a time: with the API's own statements through the bare driver, through a
session like the API's, and by an HTTP client that keeps its connection. Prints one JSON
line for each database.

    python -m benchmarks.lookup --records 10000000 --dir /var/tmp/lookup --keep
"""

import argparse
import http.client
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from benchmarks import _databases, _filling, _services
from benchmarks._latencies import described, timed
from records import database
from tuner.queries import records as record_queries

_GOALS = {"database_p99_ms": 1.0, "rest_p99_ms": 5.0}
_TARGET = 1


def main() -> None:
    """Run the look-ups of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--tasks", type=int, default=20_000, help="a multiple of 200")
    parser.add_argument("--lookups", type=int, default=5_000)
    parser.add_argument(
        "--databases", nargs="+", choices=_databases.KINDS, default=_databases.KINDS
    )
    parser.add_argument(
        "--dir", type=Path, help="folder of the databases [default: a temporary one]"
    )
    parser.add_argument("--keep", action="store_true", help="keep them for another run")
    arguments = parser.parse_args()
    _services.exit_on_sigterm()
    folder = arguments.dir or Path(tempfile.mkdtemp(prefix="lookup-"))
    filling = _filling.Filling(arguments.records, arguments.tasks)
    try:
        for kind in arguments.databases:
            with _databases.running(kind, folder / kind) as url:
                result = _run(url, folder / f"{kind}-data", filling, arguments.lookups)
            print(json.dumps({"benchmark": "lookup", "database": kind, **result}), flush=True)
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)


def _run(url: str, data_dir: Path, filling: _filling.Filling, n_lookups: int) -> dict[str, Any]:
    started = time.monotonic()
    engine = _filling.open_filled(url, filling)
    filling_secs = time.monotonic() - started
    try:
        plan = _plan(engine, _filling.workload_hash(7))
        result = {
            "by_driver": described(_by_driver(engine, _keys(filling, n_lookups))),
            "by_session": described(_by_session(engine, _keys(filling, n_lookups))),
        }
        with _services.api(url, data_dir) as (service, pid):
            api = psutil.Process(pid)
            before = sum(api.cpu_times()[:2])
            result["by_rest"] = described(_by_rest(service, _keys(filling, n_lookups)))
            # Each key is requested twice. Unlike the time, CPU time hardly depends on other load.
            secs = sum(api.cpu_times()[:2]) - before
            result["by_rest"]["api_cpu_ms"] = round(secs / n_lookups / 2 * 1e3, 3)
    finally:
        engine.dispose()
    return {
        "records": filling.n_records,
        "tasks": filling.n_tasks,
        "filling_secs": round(filling_secs, 1),
        **result,
        "goals": _GOALS,
        "reached": result["by_driver"]["p99_ms"] < _GOALS["database_p99_ms"]
        and result["by_rest"]["p99_ms"] < _GOALS["rest_p99_ms"],
        "plan": plan,
        "scans": _filling.scans(plan),
    }


def _keys(filling: _filling.Filling, n_lookups: int) -> list[str]:
    drawn = random.Random(0)
    return [_filling.workload_hash(drawn.randrange(filling.n_tasks)) for _ in range(n_lookups)]


def _warm(look_up: Callable[[str], None], keys: list[str]) -> list[float]:
    """Look every key up once, so that the disk is not measured, and then time it."""
    timed(look_up, keys)
    return timed(look_up, keys)


def _look_up(session: Session, key: str) -> None:
    """Look a workload up as the API does."""
    bests = record_queries.read_bests(session, workload=key, target_id=_TARGET, limit=101)
    if len(bests) != 1:
        raise LookupError(f"{len(bests)} best records of workload {key}")


def _sent(engine: Engine, key: str) -> list[tuple[str, Any]]:
    """Return the statements of a look-up, with their parameters."""
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, sql: str, parameters: Any, *_rest: Any) -> None:
        if sql.startswith("SELECT"):
            sent.append((sql, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        with database.sessions(engine, read_only=True)() as session:
            _look_up(session, key)
    finally:
        event.remove(engine, "before_cursor_execute", note)
    return sent


def _plan(engine: Engine, key: str) -> list[str]:
    with engine.connect() as connection:
        return [
            step
            for sql, parameters in _sent(engine, key)
            for step in _filling.analysed(connection, sql, parameters)
        ]


def _by_driver(engine: Engine, keys: list[str]) -> list[float]:
    sent = _sent(engine, keys[0])
    connection = engine.raw_connection()
    cursor = connection.cursor()

    def look_up(key: str) -> None:
        for sql, parameters in sent:
            cursor.execute(sql, _replaced(parameters, keys[0], key))
            cursor.fetchall()

    try:
        return _warm(look_up, keys)
    finally:
        connection.close()


def _replaced(parameters: Any, old: str, new: str) -> Any:
    if isinstance(parameters, Mapping):
        return {name: new if value == old else value for name, value in parameters.items()}
    return tuple(new if value == old else value for value in parameters)


def _by_session(engine: Engine, keys: list[str]) -> list[float]:
    lookups = database.lookups(engine)

    def look_up(key: str) -> None:
        with lookups() as session:
            _look_up(session, key)

    return _warm(look_up, keys)


def _by_rest(service: str, keys: list[str]) -> list[float]:
    # A minimal client, because its own work is measured too.
    client = http.client.HTTPConnection(urlsplit(service).netloc, timeout=30.0)

    def look_up(key: str) -> None:
        client.request("GET", f"/api/v1/records/best?workload={key}&target={_TARGET}")
        answer = client.getresponse()
        text = answer.read()
        if answer.status != HTTPStatus.OK or text.count(b'"record":') != 1:
            raise LookupError(f"{text.decode()} for workload {key}")

    try:
        return _warm(look_up, keys)
    finally:
        client.close()


if __name__ == "__main__":
    main()
