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
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpus import results
from benchmarks.corpus.catalogue import ENTRIES
from benchmarks.corpus.entries import Entry, Light, Zoo
from benchmarks.corpus.files import FetchError, Files
from benchmarks.corpus.trial import fixed_inputs
from benchmarks.speed import versus_report
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


def main() -> None:
    """Run the networks of the command line, and print the table."""
    arguments = _parser().parse_args()
    folder: Path = arguments.data_dir
    file = folder / "results.jsonl"
    entries = _chosen(arguments.only)
    if not arguments.report:
        folder.mkdir(parents=True, exist_ok=True)
        done = versus_report.read(file)
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
    lines = versus_report.read(file)
    chosen = [lines[entry.name] for entry in entries if entry.name in lines]
    print(json.dumps(versus_report.summarise(chosen)))
    print(versus_report.table(chosen), file=sys.stderr)


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


if __name__ == "__main__":
    main()
