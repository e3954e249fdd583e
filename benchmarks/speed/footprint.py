"""Time from ``tuner tune`` to the first recorded trial, and memory of each process.

Runs the command cold in a new data directory, watches its database from outside,
and samples the resident memory of the coordinator and of its workers until it
ends. Prints one JSON line.

    python -m benchmarks.speed.footprint --model squeezenet --trials 1000
"""

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from benchmarks.models import light_model

_POLL_SECS = 0.05


def main() -> None:
    """Run the measurement of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="squeezenet", help="one of the light ONNX models")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--keep", type=Path, help="data directory to keep")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data_dir = arguments.keep or Path(folder) / "data"
        print(json.dumps(_watch(arguments.model, arguments.trials, data_dir)), flush=True)


def _watch(model: str, trials: int, data_dir: Path) -> dict[str, Any]:
    started = time.monotonic()
    command = [
        *(str(Path(sys.executable).parent / "tuner"), "tune", light_model(model)),
        *("--random-weights", "0", "--trials", str(trials)),
        *("--data-dir", str(data_dir)),
    ]
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first_trial_secs: float | None = None
    coordinator = worker = 0
    while process.poll() is None:
        if first_trial_secs is None and _n_records(data_dir / "tuner.db"):
            first_trial_secs = time.monotonic() - started
        coordinator = max(coordinator, _resident(process))
        worker = max(worker, *(_resident(child) for child in _children(process)), 0)
        time.sleep(_POLL_SECS if first_trial_secs is None else 1.0)
    return {
        "benchmark": "footprint",
        "model": model,
        "trials": _n_records(data_dir / "tuner.db"),
        "exit_code": process.returncode,
        "secs": round(time.monotonic() - started, 1),
        "first_trial_secs": first_trial_secs and round(first_trial_secs, 2),
        "coordinator_peak_mb": round(coordinator / 1e6),
        "worker_peak_mb": round(worker / 1e6),
    }


def _n_records(path: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM measure_record").fetchone()[0])
    except sqlite3.Error:
        return 0


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


if __name__ == "__main__":
    main()
