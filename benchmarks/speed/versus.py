"""Tuned networks against ONNX Runtime and OpenVINO: one table of how much faster or slower.

For each network: tune within the budget, build, compare the outputs, time library and peers in
turns with the same threads, in float32. Where the library is not the fastest, a profile tells which
kernels lose the most to the faster peer. Appends a JSON line for each network to a file; a second
call continues: networks that have a line are left out, and one that was being tuned is resumed.

    python -m benchmarks.speed.versus
    python -m benchmarks.speed.versus --only light-squeezenet zoo:mlp --seconds 60
    python -m benchmarks.speed.versus --report
"""

import argparse
import fnmatch
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from benchmarks.corpus import results
from benchmarks.corpus.catalogue import ENTRIES
from benchmarks.corpus.entries import Entry, Light, Zoo
from benchmarks.corpus.files import FetchError, Files
from benchmarks.corpus.trial import fixed_inputs
from benchmarks.workers import open_worker
from tuner.compile.bench.benchmark import BenchRequest, bench_library
from tuner.compile.bench.comparison import Comparison, PeerResult
from tuner.compile.build_library import BuiltLibrary, build_library
from tuner.context import Context, open_context
from tuner.devices.cpu_caches import n_cores
from tuner.errors import TunerError, WorkError, summary
from tuner.jobs.preparation import prepare
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.profiling.library_profile import ProfileRequest, profile_library
from tuner.tuning.run_local import run_tuning

#: Networks that were tuned while the tuner was written: five with goals of their own, and those
#: two that came closest to the time of the faster peer.
KNOWN = (
    *("light-resnet50", "light-vgg19", "zoo-resnet-18", "torchvision-mobilenet_v3_small"),
    *("bert-base", "torchvision-maxvit_t", "zoo-inception_v3"),
)
#: Networks that were never tuned before, drawn at random.
NEW = (
    *("timm-mobileone_s0", "roberta", "style-transfer", "ppocr-v6-recognition"),
    *("keyword-spotting", "ppocr-v2-direction", "edsr"),
)
_PEERS = ("onnxruntime", "openvino")
_LIBRARY = "library"
# What a line says about tuning and building.
_MADE = ("n_trials", "tuning_secs", "tasks", "fallbacks")
_SEED = 0
_N_TURNS = 10
_N_LOSSES = 3
_ZOO = "zoo:"

Line = Mapping[str, Any]
#: Goals of the ratio to the faster peer: geometric mean, and worst network.
GOAL_MEAN, GOAL_WORST = 0.8, 1.0


def main() -> None:
    """Run the networks of the command line, and print the table."""
    arguments = _parser().parse_args()
    folder: Path = arguments.data_dir
    file = folder / "results.jsonl"
    entries = _chosen(arguments.only)
    if not arguments.report:
        folder.mkdir(parents=True, exist_ok=True)
        done = read(file)
        missing = [
            entry
            for entry in entries
            if arguments.again or _is_done(done.get(entry.name), arguments) == arguments.compare
        ]
        files = Files(arguments.corpus)
        files.fetch(missing, lambda line: print(line, file=sys.stderr, flush=True))
        for entry in missing:
            before = done[entry.name] if arguments.compare else None
            line = _run(entry, files, folder / entry.name, arguments, before)
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
    lines = read(file)
    chosen = [lines[entry.name] for entry in entries if entry.name in lines]
    print(json.dumps(summarise(chosen)))
    print(table(chosen), file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.versus", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        default=[*KNOWN, *NEW],
        help="Networks of the corpus, as names or patterns, or zoo:NAME.",
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="Tuning of each network.")
    parser.add_argument("--trials", type=int, help="Maximum of trials of each network.")
    parser.add_argument("--again", action="store_true", help="Run again what has a line.")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="Compare the libraries that have a line once more, a minute each, without tuning.",
    )
    parser.add_argument("--report", action="store_true", help="Print the table only.")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path("build/versus"),
        help="Folder of the results, and of the records of each network.",
    )
    parser.add_argument(
        "--corpus", type=Path, default=Path("build/corpus"), help="Folder of downloads and exports."
    )
    return parser


def _chosen(names: Sequence[str]) -> list[Entry]:
    """Return the entries of names and patterns, in the order of the names."""
    chosen: dict[str, Entry] = {}
    for name in names:
        if name.startswith(_ZOO):
            zoo = name.removeprefix(_ZOO)
            entry = Entry(f"zoo-{zoo}", "classification", Zoo(zoo))
            matching = [entry]
        else:
            matching = [entry for entry in ENTRIES if fnmatch.fnmatch(entry.name, name)]
        if not matching:
            sys.exit(f"no network of the corpus matches {name}")
        chosen |= {entry.name: entry for entry in matching}
    return list(chosen.values())


def _is_done(line: dict[str, Any] | None, arguments: argparse.Namespace) -> bool:
    """Return whether a network has a result with this budget."""
    if line is None or "error" in line:
        return False
    return (line["seconds"], line["trials"]) == (arguments.seconds, arguments.trials)


def _run(
    entry: Entry,
    files: Files,
    folder: Path,
    arguments: argparse.Namespace,
    before: dict[str, Any] | None,
) -> dict[str, Any]:
    """Run one network, or compare the library of an earlier run; an error is part of its line."""
    line = {
        "benchmark": "versus",
        "network": entry.name,
        "new": entry.name not in KNOWN,
        "seconds": arguments.seconds,
        "trials": arguments.trials,
        "threads": n_cores(),
        "date": datetime.now(UTC).date().isoformat(),
        "revision": results.revision(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with open_context(None, folder) as context:
            model = files.reference(entry)
            if before is None:
                made = _make(context, entry, model, folder, arguments)
            else:
                made = {key: before[key] for key in _MADE}
                line |= {"revision": before["revision"]}
            return line | made | _compare(context, entry, model, folder)
    except (TunerError, FetchError) as error:
        return line | {"error": summary(error, max_chars=400)}


def _make(
    context: Context, entry: Entry, model: str, folder: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Tune and build."""
    seed = _SEED if isinstance(entry.source, Light) else None
    request = ModelRequest(model, inputs=entry.shapes, random_weights=seed)
    spec = TuneSpec(trials=arguments.trials, seconds=arguments.seconds)
    (tuned,) = run_tuning(context, TuneRequest((request,), spec))
    built = _build(context, request, folder / _LIBRARY)
    made = (
        tuned.snapshot.n_trials,
        round(tuned.secs, 1),
        len(built.manifest.subgraphs),
        built.n_fallbacks,
    )
    return dict(zip(_MADE, made, strict=True))


def _compare(context: Context, entry: Entry, model: str, folder: Path) -> dict[str, Any]:
    """Compare a library with its peers, and profile it where one is faster."""
    library = folder / _LIBRARY
    arrays = fixed_inputs(entry, library)
    reference = None if model.startswith(_ZOO) else model
    bench = BenchRequest(model=reference, against=("all",), arrays=arrays, n_turns=_N_TURNS)
    comparison = bench_library(context.settings, library, bench)
    peers = {peer.name: peer for peer in comparison.peers if peer.name in _PEERS}
    if not peers:
        raise WorkError("no peer could run the network")
    line = _times(comparison, peers)
    fastest = min(peers.values(), key=lambda peer: peer.median_secs)
    if fastest.ratio <= 1.0:
        return line
    return line | {"losses": _losses(context, library, reference, fastest.name, arrays)}


def _build(context: Context, request: ModelRequest, out: Path) -> BuiltLibrary:
    with open_worker(context.settings) as worker:
        prepared = prepare(request, context, worker, must_run=True)
        return build_library(context, [prepared], worker, out)


def _times(comparison: Comparison, peers: dict[str, PeerResult]) -> dict[str, Any]:
    fastest = min(peers.values(), key=lambda peer: peer.median_secs)
    error = comparison.estimate_error
    return {
        "library_ms": round(comparison.library_secs * 1e3, 4),
        **{f"{name}_ms": round(peer.median_secs * 1e3, 4) for name, peer in peers.items()},
        "ratio": round(fastest.ratio, 3),
        "fastest_peer": fastest.name,
        "estimate_off": None if error is None else round(error, 3),
        "clock": comparison.clock and round(comparison.clock, 3),
        "disturbed": comparison.is_disturbed,
        "agrees": comparison.agrees,
        "worst_error": max(peer.worst for peer in peers.values()),
    }


def _losses(
    context: Context,
    library: Path,
    model: str | None,
    peer: str,
    arrays: dict[str, Any] | None,
) -> list[dict[str, Any]]:
    """Return the kernels that lose the most to a peer, the largest loss first."""
    with tempfile.TemporaryDirectory() as scratch:
        file = None
        if arrays is not None:
            file = Path(scratch) / "inputs.npz"
            np.savez(file, allow_pickle=False, **arrays)
        request = ProfileRequest(arrays=file, model=model, against=(peer,))
        profile = profile_library(context, library, request)
    (compared,) = profile.peers
    return [
        {
            "kernels": list(loss.kernels),
            "nodes": list(loss.nodes),
            "library_ms": round(loss.secs * 1e3, 4),
            "peer_ms": round(loss.peer_secs * 1e3, 4),
        }
        for loss in profile.losses(compared)[:_N_LOSSES]
    ]


def read(file: Path) -> dict[str, dict[str, Any]]:
    """Return the last line of each network, by name; a line that was cut off is left out."""
    lines = {}
    for text in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        lines[line["network"]] = line
    return lines


def summarise(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the geometric means of the ratios to the faster peer, and the worst network."""
    timed = [line for line in lines if "error" not in line]
    worst = max(timed, key=lambda line: line["ratio"], default=None)
    mean = _mean(timed)
    return {
        "benchmark": "versus",
        "networks": len(lines),
        "failed": [line["network"] for line in lines if "error" in line],
        "disagree": [line["network"] for line in timed if not line["agrees"]],
        "mean_ratio": mean,
        "mean_ratio_of_new": _mean([line for line in timed if line["new"]]),
        "faster": sum(line["ratio"] <= 1.0 for line in timed),
        "worst_ratio": worst and worst["ratio"],
        "worst_network": worst and worst["network"],
        "reached": bool(
            worst
            and mean
            and len(timed) == len(lines)
            and mean <= GOAL_MEAN
            and worst["ratio"] <= GOAL_WORST
        ),
    }


def table(lines: Sequence[Line]) -> str:
    """Return a table in Markdown, a row for each network, and the losses below."""
    rows = [
        "| network | new | trials | library (ms) | ONNX Runtime (ms) | OpenVINO (ms) "
        "| to the faster |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_row(line) for line in lines),
    ]
    summary = summarise(lines)
    if summary["mean_ratio"] is not None:
        new = summary["mean_ratio_of_new"]
        of_new = "" if new is None else f", {new:.2f} of the new ones"
        rows += [
            "",
            f"Geometric mean against the faster peer {summary['mean_ratio']:.2f}{of_new}; worst "
            f"{summary['worst_ratio']:.2f} ({summary['worst_network']}).",
        ]
    losses = [
        text
        for line in lines
        for text in [
            f"- {line['network']}: {', '.join(loss['kernels'])} takes {loss['library_ms']:.4g} ms, "
            f"{line['fastest_peer']} {loss['peer_ms']:.4g} ms"
            for loss in line.get("losses", ())
        ]
    ]
    return "\n".join([*rows, *(["", *losses] if losses else [])])


def _row(line: Line) -> str:
    new = "new" if line["new"] else ""
    if "error" in line:
        return f"| {line['network']} | {new} | {line['error'].replace('|', '/')} | | | | |"
    ratio = f"{'~' if line['disturbed'] else ''}{line['ratio']:.2f}"
    times = (line.get(f"{name}_ms") for name in ("library", "onnxruntime", "openvino"))
    shown = " | ".join("" if ms is None else f"{ms:.4g}" for ms in times)
    return f"| {line['network']} | {new} | {line['n_trials']} | {shown} | {ratio} |"


def _mean(lines: Sequence[Line]) -> float | None:
    return round(geometric_mean(line["ratio"] for line in lines), 3) if lines else None


if __name__ == "__main__":
    main()
