"""Load on ordinary routes: clients of one token, and a bystander with another one."""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from benchmarks import _databases, _filling, _services
from records.tokens import create_token

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
        engine = _filling.open_filled(database_url, _FILLING)
        with Session(engine) as session, session.begin():
            secrets = [create_token(session, name, ["admin"])[1] for name in ("crowd", "lone")]
        engine.dispose()
        with _services.api(database_url, folder / "data", "--require-tokens") as (url, _):
            load = _Load(secrets[0], secrets[1], arguments)
            rows = [
                {"route": route, "clients": n_clients, **load.of(url + route, n_clients)}
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


@dataclass(frozen=True)
class _Load:
    """Loads with the same tokens, for as long as the command line says."""

    crowd: str
    bystander: str
    arguments: argparse.Namespace

    def of(self, url: str, n_clients: int) -> dict[str, Any]:
        """Load an address with a number of clients, and return what they and a bystander saw."""
        crowd = self._start(url, self.crowd, n_clients, 0.0)
        lone = self._start(url, self.bystander, 1, _BYSTANDER_INTERVAL_SECS)
        answers, bystander = self._result(crowd), self._result(lone)
        kinds = answers["error_kinds"].items()
        n_refused = sum(n for kind, n in kinds if kind.startswith("status"))
        per_sec = round((answers["requests"] - n_refused) / answers["secs"], 1)
        return {"per_sec": per_sec, **answers, "bystander": bystander}

    def _start(
        self, url: str, token: str, n_clients: int, interval_secs: float
    ) -> "subprocess.Popen[str]":
        command = [
            *(sys.executable, "-m", "benchmarks._pollers", url, "--token", token),
            *("--clients", str(n_clients), "--seconds", str(self.arguments.route_secs)),
            *("--interval", str(interval_secs), "--nice", str(self.arguments.client_nice)),
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_services.ROOT)

    def _result(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        try:
            output, _ = process.communicate(timeout=self.arguments.route_secs + 120.0)
        finally:
            process.kill()
        answers: dict[str, Any] = json.loads(output)
        return answers
