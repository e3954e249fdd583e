"""A day of a service in an hour: clients at work while its parts are killed, and what is left.

Starts ``tuner serve`` on a PostgreSQL of its own, with its data on a small disk. Clients of five
owners submit sound and damaged models, watch, change, build and download. Processes of
the service are killed, the disk fills up, the database goes away. The last quarter is calm: there
the memory of each process is watched. At the end everything that was acknowledged is compared with
the database, and what the ended service left behind is looked for. Prints one JSON line, progress
goes to stderr. Ctrl-C ends the test early, with the checks.

    python -m benchmarks.robustness.soak --minutes 60 --engine synthetic
"""

import argparse
import asyncio
import json
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from benchmarks import services
from benchmarks.robustness.model_bases import write_bases
from benchmarks.robustness.soak import checks
from benchmarks.robustness.soak.clients import API, Client, Owner, Scene, good_models
from benchmarks.robustness.soak.faults import Faults, Plan, small_disk
from benchmarks.robustness.soak.ledger import Ledger
from benchmarks.robustness.soak.samples import Samples, is_flat, sizes
from records import database
from records.service import tokens
from tuner.workers.confinement import sandbox

_ENGINES = {"synthetic": "tests.engines.toy", "real": "tuner.engines.relax.worker"}
_N_OWNERS = 5
_PROGRESS_SECS = 30.0
_STALL_SECS = 180.0
_RUN_SECS = "0.02"


@dataclass(frozen=True)
class Stage:
    """The surroundings of a soak test.

    Attributes:
        url: URL of the service.
        pid: Process of ``tuner serve``.
        server: PostgreSQL server.
        engine: Connections to its database.
        data_dir: Data directory of the service.
        disk: The small disk that holds it; None if it is an ordinary folder.
        owners: Tokens of the clients; the last one has the scope admin.
    """

    url: str
    pid: int
    server: Any
    engine: Engine
    data_dir: Path
    disk: Path | None
    owners: tuple[Owner, ...]


def main() -> None:
    """Run the test of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--engine", choices=_ENGINES, default="synthetic")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--disk-mb", type=int, default=1024, help="size of the small disk")
    parser.add_argument("--kill-interval", type=float, default=20.0, help="seconds between kills")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the log")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    disk = folder / "disk"
    try:
        with (
            services.postgres(folder / "database") as server,
            small_disk(disk, arguments.disk_mb << 20) as is_small,
        ):
            report = _run(server, disk, is_small, arguments)
            if arguments.keep:
                shutil.copy(disk / "data" / "service.log", folder)
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(report), flush=True)


def _run(server: Any, disk: Path, is_small: bool, arguments: argparse.Namespace) -> dict[str, Any]:
    ledger, mark = Ledger(), f"SOAK_{secrets.token_hex(8)}"
    engine = database.open_database(server.get_uri())
    environ = {
        mark: "1",
        "TUNER_REQUIRE_TOKENS": "1",
        "TUNER_N_BUILDERS": "1",
        "TOY_RUN_SECS": _RUN_SECS,
        "TUNER_WORKER_SANDBOX": "auto" if sandbox.shortcoming() else "required",
    }
    data_dir, module = disk / "data", _ENGINES[arguments.engine]
    try:
        owners = tuple(_owners(engine))
        with services.service(server.get_uri(), data_dir, module, **environ) as (url, pid):
            stage = Stage(url, pid, server, engine, data_dir, disk if is_small else None, owners)
            samples = Samples(pid, data_dir)
            played = asyncio.run(_play(stage, ledger, samples, arguments))
        left = [f"process {item.pid} is left" for item in checks.orphans(mark)]
        with Session(engine) as session:
            return {**played, **_report(session, ledger, samples, left, data_dir)}
    finally:
        engine.dispose()


def _owners(engine: Engine) -> Iterator[Owner]:
    """Create the tokens of the clients, and one of an administrator."""
    scopes = {f"owner-{number}": "submit" for number in range(_N_OWNERS)} | {"operator": "admin"}
    for name, scope in scopes.items():
        with database.sessions(engine).begin() as session:
            _, secret = tokens.create_token(session, name, [scope])
        yield Owner(name, secret)


async def _play(
    stage: Stage, ledger: Ledger, samples: Samples, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Run clients and faults for the time of the test, and describe it."""
    plan = Plan(arguments.minutes * 60.0, arguments.kill_interval)
    faults = Faults(stage.pid, stage.server, stage.disk, random.Random(arguments.seed))
    scene = Scene(stage.url, ledger, good_models(), _damaged())
    clients = [
        Client(scene, stage.owners[number % _N_OWNERS], f"{arguments.seed}-{number}")
        for number in range(arguments.clients)
    ]
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    troubles = asyncio.create_task(faults.run(plan, _note))
    watching = [asyncio.create_task(samples.run()), asyncio.create_task(_show_progress(ledger))]
    playing = [asyncio.create_task(client.run()) for client in clients]
    with suppress(TimeoutError):
        await asyncio.wait_for(interrupted.wait(), plan.secs)
    scene.stopping.set()
    faults.stopping.set()
    await _end([troubles], ledger)
    await _end(playing, ledger)
    if not interrupted.is_set():
        await _drain(stage, ledger, interrupted)
    await _end(watching, ledger, cancel=True)
    return {
        "benchmark": "soak",
        **{key: getattr(arguments, key) for key in ("engine", "minutes", "seed", "clients")},
        "interrupted": interrupted.is_set(),
        "sandbox": sandbox.shortcoming() or "complete",
        "faults": dict(faults.done),
    }


async def _end(tasks: list[asyncio.Task[None]], ledger: Ledger, *, cancel: bool = False) -> None:
    """Wait for tasks; an error of one is a defect of this test, and makes it fail."""
    if cancel:
        for task in tasks:
            task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            ledger.violate(f"a part of the test ended: {ended!r}")


async def _drain(stage: Stage, ledger: Ledger, interrupted: asyncio.Event) -> None:
    """Wait until all jobs and builds have ended; if none ends for long, that is a violation."""
    _note("waiting for jobs and builds to end")
    before: dict[str, int] = {}
    deadline = 0.0
    while not interrupted.is_set():
        with Session(stage.engine) as session:
            left = checks.unfinished(session)
        if not any(left.values()):
            break
        if left != before:
            before, deadline = left, time.monotonic() + _STALL_SECS
        if time.monotonic() > deadline:
            ledger.violate(f"nothing ended in {_STALL_SECS:.0f} s: {left}")
            break
        await asyncio.sleep(2.0)
    headers = {"authorization": f"Bearer {stage.owners[-1].secret}"}
    async with httpx.AsyncClient(base_url=stage.url, headers=headers, trust_env=False) as http:
        for path in ("/readyz", f"{API}/jobs", f"{API}/workers", "/metrics"):
            answer = await http.get(path, timeout=30.0)
            if not answer.is_success:
                ledger.violate(f"{path} after the test: {answer.status_code}")


def _report(
    session: Session, ledger: Ledger, samples: Samples, left: list[str], data_dir: Path
) -> dict[str, Any]:
    """Check what is left, and describe what happened."""
    lost = list(checks.lost(session, ledger, data_dir))
    left = [*left, *checks.leftovers(session, data_dir)]
    growth = samples.growth()
    return {
        "answers": ledger.by_status(),
        "p99_secs": round(float(np.percentile(ledger.latencies or [0.0], 99.0)), 2),
        "acknowledged": {
            "jobs": len(ledger.jobs),
            "builds": len(ledger.builds),
            "events": len(ledger.events),
            "archives": sum(map(len, ledger.archives.values())),
        },
        **checks.states(session),
        "failures": list(checks.failures(session, ledger)),
        "memory": growth,
        "disk_mib": [n >> 20 for n in samples.disk[:: max(len(samples.disk) // 12, 1)]],
        "folders_mib": {name: n >> 20 for name, n in sizes(data_dir).items() if n >> 20},
        "unfinished_files": checks.unfinished_files(data_dir),
        "violations": ledger.violations,
        "lost": lost,
        "left": left,
        "reached": not (ledger.violations or lost or left) and is_flat(growth),
    }


def _damaged() -> list[bytes]:
    """Return the models that clients damage."""
    folder = services.ROOT / "build" / "mutated-models" / "bases"
    write_bases(folder, ["layers"])
    return [path.read_bytes() for path in sorted((folder / "layers").glob("*.onnx"))]


async def _show_progress(ledger: Ledger) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(_PROGRESS_SECS)
        _note(
            f"{time.monotonic() - began:.0f} s: {len(ledger.jobs)} jobs, {len(ledger.builds)} "
            f"builds, {len(ledger.events)} events, {ledger.by_status()}, "
            f"{len(ledger.violations)} violations {ledger.violations[-1:]}"
        )


def _note(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
