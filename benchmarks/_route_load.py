"""Load on ordinary routes: clients that ask again at once, and a bystander beside them."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import _databases, _filling, _services

ROUTES = ("/api/v1/jobs", "/api/v1/records/list", "/api/v1/jobs/1")
_FILLING = _filling.Filling(64_000, 1_000, tasks_per_job=20)
_BYSTANDER_INTERVAL_SECS = 0.25
_GOALS = {"errors": 0, "bystander_max_ms": 1000.0}


def measure(kind: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Load each route of an API process with each number of clients, one after the other.

    Args:
        kind: Kind of the database.
        folder: Folder of the database and of the data directory.
        arguments: ``route_clients``, ``route_secs`` of each load, and ``client_nice``.
    """
    with _databases.running(kind, folder / "database") as database_url:
        _filling.open_filled(database_url, _FILLING).dispose()
        with _services.api(database_url, folder / "data") as (url, _):
            rows = [
                {"route": route, "clients": n_clients, **_load(url + route, n_clients, arguments)}
                for route in ROUTES
                for n_clients in arguments.route_clients
            ]
    errors = sum(row["errors"] + row["bystander"]["errors"] for row in rows)
    slowest = max(row["bystander"].get("max_ms", float("inf")) for row in rows)
    return {
        "benchmark": "service_load",
        "part": "routes",
        "database": kind,
        "seconds": arguments.route_secs,
        "rows": rows,
        "errors": errors,
        "bystander_max_ms": slowest,
        "goals": _GOALS,
        "reached": not errors and slowest < _GOALS["bystander_max_ms"],
    }


def _load(url: str, n_clients: int, arguments: argparse.Namespace) -> dict[str, Any]:
    crowd = _start(url, n_clients, 0.0, arguments)
    lone = _start(url, 1, _BYSTANDER_INTERVAL_SECS, arguments)
    answers, bystander = _result(crowd, arguments), _result(lone, arguments)
    per_sec = round((answers["requests"] - answers["errors"]) / arguments.route_secs, 1)
    return {"per_sec": per_sec, **answers, "bystander": bystander}


def _start(
    url: str, n_clients: int, interval_secs: float, arguments: argparse.Namespace
) -> "subprocess.Popen[str]":
    command = [
        *(sys.executable, "-m", "benchmarks._pollers", url),
        *("--clients", str(n_clients), "--seconds", str(arguments.route_secs)),
        *("--interval", str(interval_secs), "--nice", str(arguments.client_nice)),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_services.ROOT)


def _result(process: "subprocess.Popen[str]", arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        output, _ = process.communicate(timeout=arguments.route_secs + 120.0)
    finally:
        process.kill()
    answers: dict[str, Any] = json.loads(output)
    return answers
