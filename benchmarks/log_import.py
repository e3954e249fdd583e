"""Memory of the import of an Ansor log of any size.

Tunes a small network with the engine relay for some real schedules, makes a log of them with other
tile sizes, imports it twice with ``tuner records import``, and samples the resident memory of the
process and of its workers. Most lines have workloads that the database lacks, as in a log of many
networks. Prints one JSON line.

    python -m benchmarks.log_import --megabytes 1000
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

_POLL_SECS = 0.25
_NETWORK = "zoo:mlp"
_TRIALS = 12
_N_STRANGERS = 400
_TUNER = str(Path(sys.executable).parent / "tuner")
_MAX_BYTES = 400e6


def main() -> None:
    """Run the measurement of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=1000.0)
    parser.add_argument("--known", type=float, default=0.05, help="share of lines that are stored")
    parser.add_argument("--folder", type=Path, help="folder of the log and the database")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(json.dumps(_measure(Path(folder), arguments)), flush=True)


def _measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    data_dir, log = folder / "data", folder / "big.json"
    templates = _templates(data_dir, folder / "few.json")
    with log.open("w") as stream:
        for line in _lines(templates, arguments.known, arguments.megabytes * 1e6):
            stream.write(line)
    first, again = (_import(log, data_dir) for _ in range(2))
    peak = max(first["peak_mb"], again["peak_mb"])
    return {
        "benchmark": "log_import",
        "megabytes": round(log.stat().st_size / 1e6),
        "first": first,
        "again": again,
        "reached": peak < _MAX_BYTES / 1e6 and again["added"] == 0,
    }


def _templates(data_dir: Path, file: Path) -> list[dict[str, Any]]:
    """Return lines of real schedules."""
    place = ("--data-dir", str(data_dir))
    options = ("--engine", "relay", "--trials", str(_TRIALS), "--trials-per-round", "4")
    _run("tune", _NETWORK, *options, *place)
    _run("records", "export", "--format", "ansor", str(file), *place)
    return [json.loads(line) for line in file.read_text().splitlines()]


def _run(*words: str) -> None:
    subprocess.run([_TUNER, *words], check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr)


def _lines(templates: list[dict[str, Any]], known: float, n_bytes: float) -> Iterator[str]:
    """Yield lines of templates with other, seeded tile sizes, up to a number of bytes."""
    draw = random.Random(0)
    written = 0
    while written < n_bytes:
        template = draw.choice(templates)
        (key, *rest), (stages, steps) = template["i"]
        if draw.random() >= known:
            graph, *shapes = json.loads(key)
            key = json.dumps([f"{draw.randrange(_N_STRANGERS):032x}"[: len(graph)], *shapes])
        tiled = [_retile(draw, step) for step in steps]
        line = json.dumps({**template, "i": [[key, *rest], [stages, tiled]]}) + "\n"
        written += len(line)
        yield line


def _retile(draw: random.Random, step: list[Any]) -> list[Any]:
    if step[0] != "SP":
        return step
    name, stage, loop, extent, lengths, inner = step
    left, drawn = extent, []
    for _ in lengths:
        drawn.append(draw.choice([size for size in range(1, left + 1) if left % size == 0]))
        left //= drawn[-1]
    return [name, stage, loop, extent, drawn, inner]


def _import(log: Path, data_dir: Path) -> dict[str, Any]:
    """Import a log and sample its memory."""
    started = time.monotonic()
    command = [_TUNER, "records", "import", str(log), "--json", "--data-dir", str(data_dir)]
    main_bytes = worker_bytes = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            main_bytes = max(main_bytes, _resident(watched))
            worker_bytes = max(worker_bytes, *map(_resident, _children(watched)), 0)
            time.sleep(_POLL_SECS)
        assert process.stdout is not None
        report = json.load(process.stdout)
    return {
        "secs": round(time.monotonic() - started, 1),
        "peak_mb": round(main_bytes / 1e6),
        "worker_peak_mb": round(worker_bytes / 1e6),
        "added": report["added"],
        "known": report["known"],
        "skipped": sum(reason["lines"] for reason in report["skipped"]),
    }


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
