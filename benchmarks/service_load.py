"""Load of many clients: on ordinary routes, and on the table of a job during its tuning.

The first part loads three routes of an API process that answer from the database with 1, 50 and
200 clients of one token, each of which asks again once it has an answer, and times a bystander
with another token who asks four times a second beside them.

The second part starts ``tuner serve``, submits a job of 200 tasks, and measures in turns its trials
per second alone, and while every client requests the table once a second: alone, polled, polled,
alone, and so on, so that drift affects both equally. The clients share the machine with the service
at a lower priority, because real clients have machines of their own. Each part prints a JSON line.

The job's engine burns a fixed processor time for every trial, so that rates are comparable;
``--engine real`` tunes six networks of the zoo in one job, whose trials vary more.

    python -m benchmarks.service_load --parts routes --database postgresql
    python -m benchmarks.service_load --parts table --clients 200 --window 60 --pairs 2
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from benchmarks import _databases, _route_load, _services, _workers
from records import database
from records.models import MeasureRecord
from tuner.workers.python_command import run_module

_GOALS = {"errors": 0, "p99_ms": 100.0, "rate_ratio": 0.95}
_ENGINES = {"busy": "benchmarks._busy_engine", "real": "tuner.engines.relax.worker"}
_REAL = (
    "inception_v3",
    "resnet-50",
    "mobilenet",
    "squeezenet_v1.1",
    "resnet3d-18",
    "resnet-50?image=160",
)
_PARTS = ("routes", "table")
_SECS = 86_400
_PREPARE_SECS = 600.0


@dataclass(frozen=True)
class Window:
    """Stretch of tuning: trials, seconds, processor seconds of the service's processes."""

    n_trials: int
    secs: float
    cpu_secs: dict[str, float]
    mean_run_ms: float
    polled: dict[str, Any] | None

    @property
    def rate(self) -> float:
        """Trials per second."""
        return self.n_trials / self.secs


def main() -> None:
    """Run the comparison of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS)
    parser.add_argument("--route-clients", type=int, nargs="+", default=[1, 50, 200])
    parser.add_argument(
        "--route-secs", type=float, default=10.0, help="seconds of each load of a route"
    )
    parser.add_argument("--clients", type=int, default=200, help="clients that poll the table")
    parser.add_argument("--window", type=float, default=60.0, help="seconds of a stretch")
    parser.add_argument(
        "--pairs", type=int, default=2, help="number of pairs of stretches, alone and polled"
    )
    parser.add_argument(
        "--settle", type=float, default=30.0, help="seconds of tuning before the first stretch"
    )
    parser.add_argument("--engine", choices=_ENGINES, default="busy")
    parser.add_argument("--database", choices=_databases.KINDS, default="sqlite")
    parser.add_argument("--client-nice", type=int, default=5, help="as the API's own")
    arguments = parser.parse_args()
    _services.exit_on_sigterm()
    folder = Path(tempfile.mkdtemp(prefix="service-load-"))
    try:
        if "routes" in arguments.parts:
            report = _route_load.measure(arguments.database, folder / "routes", arguments)
            print(json.dumps(report), flush=True)
        if "table" in arguments.parts:
            with _databases.running(arguments.database, folder / "table") as url:
                print(json.dumps(_run(url, folder / "data", arguments)), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(database_url: str, data_dir: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    module = _ENGINES[arguments.engine]
    with _services.service(database_url, data_dir, module) as (url, pid):
        engine = database.open_database(database_url)
        try:
            job, n_tasks = _submit(url, arguments.engine)
            time.sleep(arguments.settle)
            windows = [
                _measure(engine, pid, f"{url}/api/v1/jobs/{job}/tasks", polled, arguments)
                for polled in _turns(arguments.pairs)
            ]
            httpx.post(f"{url}/api/v1/jobs/{job}/cancel", timeout=60.0).raise_for_status()
        finally:
            engine.dispose()
    return _report(windows, n_tasks, arguments)


def _submit(url: str, engine: str) -> tuple[int, int]:
    """Submit the job, wait for its first trial, and return its number and tasks."""
    models = ["mlp"] if engine == "busy" else list(_REAL)
    form = {"target": "llvm", "seconds": str(_SECS), "trials_per_round": "8"}
    if engine == "busy":
        form["cost_model"] = "random"
    files = [(name, (None, value)) for name, value in form.items()]
    files += [("zoo", (None, model)) for model in models]
    answer = httpx.post(f"{url}/api/v1/tune", files=files, timeout=60.0)
    answer.raise_for_status()
    job: int = answer.json()["job"]["id"]
    deadline = time.monotonic() + _PREPARE_SECS
    while time.monotonic() < deadline:
        view = httpx.get(f"{url}/api/v1/jobs/{job}/tasks", timeout=60.0).raise_for_status().json()
        if view["job"]["trials"]:
            return job, len(view["tasks"])
        if view["job"]["state"] not in ("queued", "running"):
            raise RuntimeError(f"the job is {view['job']['state']}: {view['job']['message']}")
        time.sleep(1.0)
    raise RuntimeError(f"no trial in {_PREPARE_SECS:.0f} s")


def _turns(pairs: int) -> list[bool]:
    """Order stretches as alone, polled, polled, alone, so that linear drift cancels out."""
    return [bool((number + 1) // 2 % 2) for number in range(2 * pairs)]


def _measure(
    engine: Engine, pid: int, url: str, polled: bool, arguments: argparse.Namespace
) -> Window:
    cpu, started = _cpu_secs(pid), time.monotonic()
    with Session(engine) as session:
        first = session.scalar(select(func.max(MeasureRecord.id))) or 0
    answers = _poll(url, arguments) if polled else None
    time.sleep(max(started + arguments.window - time.monotonic(), 0.0))
    with Session(engine) as session:
        n_trials, latency = session.execute(
            select(func.count(), func.avg(MeasureRecord.latency)).where(MeasureRecord.id > first)
        ).one()
    secs = time.monotonic() - started
    used = {name: round(after - cpu.get(name, 0.0), 1) for name, after in _cpu_secs(pid).items()}
    return Window(n_trials, secs, used, round((latency or 0.0) * 1e3, 3), answers)


def _poll(url: str, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [
        *run_module("benchmarks._pollers", url),
        *("--clients", str(arguments.clients), "--seconds", str(arguments.window)),
        *("--nice", str(arguments.client_nice)),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=_services.ROOT,
        timeout=arguments.window + 120.0,
    )
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def _cpu_secs(pid: int) -> dict[str, float]:
    """Return processor seconds of the service's processes by role."""
    totals: dict[str, float] = {}
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        try:
            times, words = process.cpu_times(), " ".join(process.cmdline())
            is_worker = _workers.is_worker(process)
        except psutil.Error:
            continue
        kind = "workers" if is_worker else "api" if " -m api" in words else "tuner"
        totals[kind] = totals.get(kind, 0.0) + times.user + times.system
    return totals


def _report(windows: list[Window], n_tasks: int, arguments: argparse.Namespace) -> dict[str, Any]:
    alone = [window for window in windows if window.polled is None]
    polled = [window for window in windows if window.polled is not None]
    ratio = _rate(polled) / _rate(alone)
    answers = [window.polled for window in polled if window.polled is not None]
    errors = sum(answer["errors"] for answer in answers)
    p99 = max(answer.get("p99_ms", float("inf")) for answer in answers)
    return {
        "benchmark": "service_load",
        "part": "table",
        "engine": arguments.engine,
        "database": arguments.database,
        "tasks": n_tasks,
        "clients": arguments.clients,
        "window_secs": arguments.window,
        "requests": sum(answer["requests"] for answer in answers),
        "errors": errors,
        "p99_ms": p99,
        "polled": answers,
        "trials_per_sec_alone": [round(window.rate, 3) for window in alone],
        "trials_per_sec_polled": [round(window.rate, 3) for window in polled],
        "rate_ratio": round(ratio, 4),
        "mean_latency_ms_alone": [window.mean_run_ms for window in alone],
        "mean_latency_ms_polled": [window.mean_run_ms for window in polled],
        "cpu_secs_alone": [window.cpu_secs for window in alone],
        "cpu_secs_polled": [window.cpu_secs for window in polled],
        "goals": _GOALS,
        "reached": not errors and p99 < _GOALS["p99_ms"] and ratio >= _GOALS["rate_ratio"],
    }


def _rate(windows: list[Window]) -> float:
    return sum(window.n_trials for window in windows) / sum(window.secs for window in windows)


if __name__ == "__main__":
    main()
