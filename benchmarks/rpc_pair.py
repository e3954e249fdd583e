"""Trials per hour of two RPC servers compared with one, with kernels that sleep.

Starts TVM's tracker and servers on loopback, and runs ``tuner tune --rpc`` on two servers and
then on one. Search and build are almost free, so the result shows how well the coordinator keeps
devices busy. Prints one JSON line; every record is compared with its kernel.

    python -m benchmarks.rpc_pair
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from benchmarks import _services
from benchmarks import _sleeping_engine as sleeping
from benchmarks._rpc_servers import RpcServers
from records import database
from records.models import MeasureRecord
from tuner.workers.python_command import run_module

_GOAL = 1.7
_TRIALS_PER_ROUND = 4
# A sleeping process wakes late on a busy machine; the next kernel sleeps a quarter longer.
_TOLERANCE = 0.12


def main() -> None:
    """Run the comparison of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=128, help="a run")
    parser.add_argument("--nap-secs", type=float, default=0.2, help="of the shortest kernel")
    arguments = parser.parse_args()
    _services.exit_on_sigterm()
    os.environ["NAP_SECS"] = str(arguments.nap_secs)
    with tempfile.TemporaryDirectory(prefix="rpc-pair-") as folder:
        runs = {n: _run(Path(folder) / str(n), n, arguments.trials) for n in (2, 1)}
    two, one = (_described(runs[n], arguments.nap_secs) for n in (2, 1))
    ratio = two["trials_per_hour"] / one["trials_per_hour"]
    wrong = two["wrong"] + one["wrong"]
    result = {"two_servers": two, "one_server": one, "ratio": round(ratio, 2), "goal": _GOAL}
    reached = ratio >= _GOAL and not wrong
    print(json.dumps({"benchmark": "rpc_pair", **result, "reached": reached}), flush=True)


def _run(folder: Path, n_servers: int, n_trials: int) -> list[MeasureRecord]:
    """Tune on ``n_servers`` servers, and return the records."""
    folder.mkdir(parents=True)
    with RpcServers(folder) as servers:
        for number in range(n_servers):
            servers.start_server(f"server-{number}")
        servers.wait_for(n_servers)
        url = f"sqlite:///{folder / 'tuner.db'}"
        engine = database.open_database(url)
        try:
            _tune(folder, url, servers.setting, n_trials, database.sessions(engine))
            with database.sessions(engine, read_only=True)() as session:
                return list(session.scalars(select(MeasureRecord).order_by(MeasureRecord.id)))
        finally:
            engine.dispose()


def _tune(folder: Path, url: str, rpc: str, n_trials: int, sessions: sessionmaker[Session]) -> None:
    """Run the command until its trials are spent, without the final.

    Raises:
        RuntimeError: If it ends earlier.
    """
    options = {
        "--target": "llvm",
        "--rpc": rpc,
        "--database": url,
        "--data-dir": str(folder / "data"),
        "--trials": str(n_trials),
        "--trials-per-round": str(_TRIALS_PER_ROUND),
        "--cost-model": "random",
        "--min-repeat-ms": "0",
    }
    words = [word for pair in options.items() for word in pair]
    command = run_module("tuner", "tune", "zoo:mlp", *words, "--no-cache-flush")
    environ = {**os.environ, "TUNER_ENGINE": sleeping.NAME, "TUNER_N_BUILDERS": "1"}
    log = folder / "tune.log"
    with log.open("wb") as stream:
        tuning = subprocess.Popen(command, env=environ, stdout=stream, stderr=stream)
    try:
        while _n_records(sessions) < n_trials:
            if tuning.poll() is not None:
                raise RuntimeError(f"tuning ended early: {log.read_text()[-2000:]}")
            time.sleep(1.0)
    finally:
        tuning.terminate()
        tuning.wait()


def _n_records(sessions: sessionmaker[Session]) -> int:
    with sessions() as session:
        return session.scalar(select(func.count(MeasureRecord.id))) or 0


def _described(records: Sequence[MeasureRecord], nap_secs: float) -> dict[str, Any]:
    """Return trials per hour between first and last trial, trials by server, and wrong records."""
    times = [record.created.timestamp() for record in records]
    secs = max(times) - min(times)
    wrong = [record for record in records if not _is_right(record, nap_secs)]
    doubled = len(records) - len({(record.task_id, record.trace_hash) for record in records})
    return {
        "trials": len(records),
        "trials_per_hour": round((len(records) - 1) / secs * 3600.0),
        "by_server": sorted(Counter(record.worker for record in records).values()),
        "wrong": len(wrong) + doubled,
        "wrong_examples": [_summary(record) for record in wrong[:3]],
    }


def _is_right(record: MeasureRecord, nap_secs: float) -> bool:
    """Return True if no sample is shorter than the kernel, and the median as long as it."""
    expected = sleeping.sleep_secs(record.trace, nap_secs)
    if not record.verified or not record.run_secs or record.latency is None:
        return False
    return min(record.run_secs) >= expected and record.latency < expected + _TOLERANCE * nap_secs


def _summary(record: MeasureRecord) -> str:
    return f"{record.trace}: {record.run_secs or record.error_text}"


if __name__ == "__main__":
    main()
