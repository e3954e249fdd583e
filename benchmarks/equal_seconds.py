"""Networks tuned for equal seconds by this checkout and by an earlier one.

For each network: both checkouts tune, build, and their libraries are timed in turns, each with its
own runtime. The two share the cores, half for each, at the same time, so that a slow hour of the
machine affects both; with one core they take turns. Appends a JSON line for each network to a file;
a second call leaves out networks that have one.

    git worktree add ../before 8ea7014 && make -C ../before lint
    python -m benchmarks.equal_seconds ../before --seconds 120

Networks are drawn at random from the corpus, without those that are quantised. One that the earlier
checkout cannot build has a line with the reason, and another one takes its place.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, cast

from benchmarks import _versus_report
from benchmarks.corpus.catalogue import ENTRIES, entry_named
from benchmarks.corpus.entries import Entry, Light
from benchmarks.corpus.files import FetchError, Files
from benchmarks.finals import races, repeated_share, summarise

_ROOT = Path(__file__).parents[1]
_TURNS = 10
_TURN_SECS = 0.2
_MAX_RUNS = 200
# Loading, splitting and the finals come on top of the seconds of tuning.
_SPARE_SECS = 900.0


class CheckoutError(Exception):
    """A command of a checkout failed."""


@dataclass(frozen=True)
class Checkout:
    """A checkout of the tuner, and the cores that it may use.

    Attributes:
        name: ``before`` or ``after``.
        folder: Its root; its ``.venv`` is used if it has one.
        cores: Cores that its processes are bound to.
    """

    name: str
    folder: Path
    cores: frozenset[int]

    def start(self, *words: str, **options: Any) -> "subprocess.Popen[str]":
        """Start Python on this checkout and its cores."""
        own = self.folder / ".venv" / "bin" / "python"
        python = own if own.exists() else Path(sys.executable)
        environment = os.environ | {
            "PYTHONPATH": str(self.folder),
            "TVM_NUM_THREADS": str(len(self.cores)),
            "OMP_NUM_THREADS": str(len(self.cores)),
        }
        cores = ",".join(map(str, sorted(self.cores)))
        return subprocess.Popen(
            ["taskset", "--cpu-list", cores, str(python), *words],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *words: str, secs: float) -> None:
        """Run a command of the tuner.

        Raises:
            CheckoutError: If it fails, or takes longer than ``secs``.
        """
        with self.start("-m", "tuner", *words, stderr=subprocess.PIPE) as process:
            try:
                _, errors = process.communicate(timeout=secs)
            except subprocess.TimeoutExpired:
                process.kill()
                raise CheckoutError(f"tuner {words[0]} took longer than {secs:.0f} s") from None
        if process.returncode:
            last = (errors.strip().splitlines() or ["no message"])[-1]
            raise CheckoutError(f"tuner {words[0]}: {last[:300]}")

    def tune(self, model: Sequence[str], seconds: float, data: Path) -> None:
        """Tune and build a network below a folder.

        Raises:
            CheckoutError: If one of them fails.
        """
        at = ("--data-dir", str(data))
        self.run("tune", *model, "--seconds", str(seconds), *at, secs=seconds + _SPARE_SECS)
        self.run("build", *model, "-o", str(data / "library"), *at, secs=_SPARE_SECS)


def main() -> None:
    """Run the networks of the command line, and print the mean of their ratios."""
    arguments = _parser().parse_args()
    folder: Path = arguments.data_dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "results.jsonl"
    files = Files(arguments.corpus.absolute())
    for entry in _order(arguments.only):
        lines = _versus_report.read(file)
        if len(_timed(lines.values())) >= arguments.networks:
            break
        if entry.name not in lines:
            line = _run(entry, files, folder / entry.name, arguments)
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
    timed = _timed(_versus_report.read(file).values())
    mean = round(geometric_mean(line["ratio"] for line in timed), 3) if timed else None
    print(json.dumps({"benchmark": "equal_seconds", "networks": len(timed), "mean_ratio": mean}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.equal_seconds", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("before", type=Path, help="Root of the earlier checkout.")
    parser.add_argument("--seconds", type=float, default=120.0, help="Tuning of each network.")
    parser.add_argument("--networks", type=int, default=20, help="Number of networks.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="Networks in place of the draw.")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path("build/equal-seconds"),
        help="Folder of the results, the records and the libraries.",
    )
    parser.add_argument(
        "--corpus", type=Path, default=Path("build/corpus"), help="Folder of downloads and exports."
    )
    return parser


def _order(names: Sequence[str] | None) -> list[Entry]:
    """Return the entries of names, or all that compute in floating point, shuffled."""
    if names:
        return [entry_named(name) for name in names]
    entries = [entry for entry in ENTRIES if entry.kind != "quantised"]
    random.Random(0).shuffle(entries)
    return entries


def _timed(lines: Any) -> list[dict[str, Any]]:
    return [line for line in lines if "ratio" in line]


def _run(entry: Entry, files: Files, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Tune a network with both checkouts; a failure is part of the line."""
    line: dict[str, Any] = {"network": entry.name, "seconds": arguments.seconds}
    files.fetch([entry], lambda text: print(text, file=sys.stderr, flush=True))
    try:
        model = _model(entry, files)
    except FetchError as error:
        return line | {"error": str(error)}
    before, after = _checkouts(arguments.before.absolute())
    is_shared = before.cores == after.cores
    with ThreadPoolExecutor(1 if is_shared else 2) as threads:
        runs = [
            threads.submit(each.tune, model, arguments.seconds, folder / each.name)
            for each in (before, after)
        ]
    for each, run in zip((before, after), runs, strict=True):
        if failure := run.exception():
            return line | {"error": f"{each.name}: {failure}"}
    secs = _time_in_turns([(each, folder / each.name / "library") for each in (before, after)])
    return line | {
        "cores": len(after.cores),
        "ratio": round(secs[1] / secs[0], 3),
        "before": _described(folder / "before", secs[0]),
        "after": _described(folder / "after", secs[1]),
    }


def _model(entry: Entry, files: Files) -> list[str]:
    """Return the model and its options on the command line."""
    words = [files.reference(entry)]
    for name, shape in entry.shapes.items():
        words += ["--input", f"{name}={','.join(map(str, shape))}"]
    return [*words, "--random-weights", "0"] if isinstance(entry.source, Light) else words


def _checkouts(before: Path) -> tuple[Checkout, Checkout]:
    """Return both checkouts with half of the cores each, or with the only one."""
    cores = sorted(os.sched_getaffinity(0))
    n_each = max(len(cores) // 2, 1)
    return (
        Checkout("before", before, frozenset(cores[:n_each])),
        Checkout("after", _ROOT, frozenset(cores[-n_each:])),
    )


def _time_in_turns(libraries: Sequence[tuple[Checkout, Path]]) -> list[float]:
    """Return the median of each library, seconds; all run on the cores of the last."""
    script = str(Path(__file__).with_name("_library_turns.py"))
    cores = libraries[-1][0].cores
    processes = [
        Checkout(each.name, each.folder, cores).start("-P", script, str(library), stdin=-1)
        for each, library in libraries
    ]
    samples: list[list[float]] = [[] for _ in processes]
    try:
        first = [median(_turn(process, 5)) for process in processes]
        n_runs = [min(max(int(_TURN_SECS / secs), 5), _MAX_RUNS) for secs in first]
        for _ in range(_TURNS):
            for process, n, taken in zip(processes, n_runs, samples, strict=True):
                taken.extend(_turn(process, n))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [median(taken) for taken in samples]


def _turn(process: "subprocess.Popen[str]", n_runs: int) -> list[float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{n_runs}\n")
    process.stdin.flush()
    return cast("list[float]", json.loads(process.stdout.readline()))


def _described(data: Path, secs: float) -> dict[str, Any]:
    """Return what the records of a checkout say beside the measured latency."""
    manifest = json.loads((data / "library" / "manifest.json").read_text())
    (program,) = manifest["programs"]
    latencies = {each["workload"]: each["latency"] for each in manifest["subgraphs"]}
    parts = [(latencies.get(workload), n) for workload, n in program["calls"].items()]
    known = [latency * n for latency, n in parts if latency is not None]
    database = data / "tuner.db"
    finals = summarise(races(database))
    return {
        "ms": round(1e3 * secs, 4),
        "estimate_off": round(sum(known) / secs - 1, 3) if len(known) == len(parts) else None,
        "repeated_share": repeated_share(database),
        **{name: finals[name] for name in ("races", "new_winners", "mean_rank_correlation")},
    }


if __name__ == "__main__":
    main()
