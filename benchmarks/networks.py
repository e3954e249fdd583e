"""Latency of tuned networks, compared with every peer and with the estimate from the records.

For each network: tune within the budget, build, compare outputs, time both
runtimes in turns with the same threads. Prints one JSON line for each network. With a
kept data directory, a second run continues the first.

    python -m benchmarks.networks --models squeezenet zoo:resnet-18 --trials 1000
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks._models import LIGHT, light_model
from tuner.compile.benchmark import BenchRequest, bench_library
from tuner.compile.build_library import build_library
from tuner.context import Context, open_context
from tuner.jobs.preparation import prepare
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.library.manifest import Manifest
from tuner.tuning.run_local import run_tuning
from tuner.workers.factory import fresh_worker


def main() -> None:
    """Run the comparison of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(LIGHT))
    parser.add_argument("--trials", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--data-dir", type=Path, default=Path("build/networks"))
    arguments = parser.parse_args()
    with open_context(None, arguments.data_dir) as context:
        for name in arguments.models:
            result = _run(context, name, arguments.trials, arguments.seconds)
            print(json.dumps(result), flush=True)


def _run(context: Context, name: str, trials: int | None, seconds: float | None) -> dict[str, Any]:
    zoo = name.startswith("zoo:")
    request = ModelRequest(name if zoo else light_model(name), random_weights=None if zoo else 0)
    tuned = run_tuning(context, TuneRequest((request,), TuneSpec(trials=trials, seconds=seconds)))
    out = context.settings.data_dir / "out" / name.replace(":", "-")
    with fresh_worker(context.settings) as worker:
        prepared = prepare(request, context, worker, must_run=True)
        built = build_library(context, [prepared], worker, out)
    comparison = bench_library(
        context.settings, out, BenchRequest(model=request.reference, against=("all",))
    )
    peers = {peer.name: peer for peer in comparison.peers}
    fastest = min(peers.values(), key=lambda peer: peer.median_secs)
    estimate = comparison.estimated_secs
    return {
        "benchmark": "networks",
        "model": name,
        "trials": tuned.snapshot.n_trials,
        "tuning_secs": round(tuned.secs, 1),
        "tasks": len(prepared.tasks),
        "fallbacks": len(built.fallbacks),
        "latency_ms": round(comparison.library_secs * 1e3, 4),
        **{f"{name}_ms": round(peer.median_secs * 1e3, 4) for name, peer in peers.items()},
        "ratio": round(peers["onnxruntime"].ratio, 3),
        "ratio_to_fastest": round(fastest.ratio, 3),
        "estimate_ms": estimate and round(estimate * 1e3, 4),
        "estimate_off": estimate and round(estimate / comparison.library_secs - 1, 3),
        "worst_error": max(peer.worst for peer in peers.values()),
        "agrees": comparison.agrees,
        "where": _where(built.manifest),
    }


def _where(manifest: Manifest) -> dict[str, float]:
    """Return shares of the estimated latency by kind of subgraph, the five largest."""
    total: dict[str, float] = defaultdict(float)
    for entry in manifest.subgraphs:
        kind = entry.name.partition("[")[0].partition("_")[0]
        total[kind] += (entry.latency or 0.0) * entry.n_calls
    whole = sum(total.values()) or 1.0
    largest = sorted(total.items(), key=lambda pair: -pair[1])[:5]
    return {kind: round(secs / whole, 3) for kind, secs in largest}


if __name__ == "__main__":
    main()
