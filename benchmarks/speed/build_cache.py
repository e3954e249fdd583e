"""Savings of the build cache: cold builds, hits, one changed layer; compared with TVM's own build.

Every subgraph gets a randomly drawn schedule, which costs as much to compile as a good one. The
cold build is timed from a network that is split into tasks to the library in its folder, with an
empty cache; TVM's own compilation of the same scheduled network is timed from the same point. A
hit is the same build again. Then one Relu in the middle of ResNet-50 becomes a Sigmoid. Prints one
JSON line for each network.

    python -m benchmarks.speed.build_cache --models zoo:resnet-18 squeezenet zoo:mobilenet resnet50
"""

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import onnx

from benchmarks.models import light_model
from benchmarks.workers import open_worker
from records.bests import BestTrace
from tuner.compile.build_library import BuiltLibrary, build_library
from tuner.context import Context, open_context
from tuner.jobs.preparation import Prepared, prepare
from tuner.jobs.requests import ModelRequest
from tuner.workers.pool import Pool

_MODELS = ("zoo:resnet-18", "squeezenet", "zoo:mobilenet", "resnet50")
_CHANGED = "resnet50"
_N_HITS = 9
# Minimum ratios; one changed layer must compile exactly one object.
_GOALS = {"cold_over_hit": 100.0, "whole_over_cold": 1.6, "cold_over_changed": 8.0}
_TIMEOUT_SECS = 1800.0


def main() -> None:
    """Run the builds of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=_MODELS, help="zoo:NAME or a light model")
    arguments = parser.parse_args()
    for model in arguments.models:
        with (
            tempfile.TemporaryDirectory() as folder,
            open_context(None, Path(folder) / "data") as context,
        ):
            result = _measure(context, model, Path(folder))
            reached = result.get("changed_compiled", 1) == 1 and all(
                result[name] >= goal for name, goal in _GOALS.items() if name in result
            )
            print(json.dumps({**result, "goals": _GOALS, "reached": reached}), flush=True)


def _measure(context: Context, model: str, folder: Path) -> dict[str, Any]:
    """Build cold, as a whole, again, and with a changed layer if requested."""
    traces: dict[str, str] = {}
    cold_secs, cold, prepared = _build(context, _request(model), traces, folder / "cold")
    whole_secs = _build_whole(context, prepared, traces, folder)
    hits = [_build(context, _request(model), traces, folder / "again")[0] for _ in range(_N_HITS)]
    result = {
        "benchmark": "build_cache",
        "model": model,
        "subgraphs": len(prepared.tasks),
        "compiled": _n_misses(cold),
        "cold_secs": round(cold_secs, 3),
        "whole_secs": round(whole_secs, 3),
        "whole_over_cold": round(whole_secs / cold_secs, 2),
        "hit_secs": round(median(hits), 4),
        "cold_over_hit": round(cold_secs / median(hits), 1),
    }
    if model != _CHANGED:
        return result
    changed = folder / "changed.onnx"
    _change_one_layer(Path(light_model(model)), changed)
    request = ModelRequest(str(changed), random_weights=0)
    changed_secs, built, _ = _build(context, request, traces, folder / "changed")
    return {
        **result,
        "changed_compiled": _n_misses(built),
        "changed_secs": round(changed_secs, 3),
        "cold_over_changed": round(cold_secs / changed_secs, 1),
    }


def _request(model: str) -> ModelRequest:
    if model.startswith("zoo:"):
        return ModelRequest(model)
    return ModelRequest(light_model(model), random_weights=0)


def _build(
    context: Context, request: ModelRequest, traces: dict[str, str], out: Path
) -> tuple[float, BuiltLibrary, Prepared]:
    """Split a network, draw missing schedules, and time the build alone."""
    with open_worker(context.settings) as worker:
        prepared = prepare(request, context, worker, must_run=True)
        traces.update(_draw(prepared, worker, traces))
        started = time.perf_counter()
        built = build_library(context, [prepared], worker, out, best=_records(traces))
        return time.perf_counter() - started, built, prepared


def _draw(prepared: Prepared, worker: Pool, traces: Mapping[str, str]) -> dict[str, str]:
    if all(task.workload_hash in traces for task in prepared.tasks):
        return {}
    drawn: dict[str, str] = worker.call(
        "benchmarks.speed.whole",
        "first_traces",
        prepared.model.file,
        prepared.target.spec,
        0,
        dict(traces),
        timeout_secs=_TIMEOUT_SECS,
    )
    return drawn


def _build_whole(
    context: Context, prepared: Prepared, traces: Mapping[str, str], folder: Path
) -> float:
    with open_worker(context.settings) as worker:
        secs: float = worker.call(
            "benchmarks.speed.whole",
            "compile_whole",
            prepared.model.file,
            prepared.target.spec,
            dict(traces),
            str(folder / "whole.so"),
            timeout_secs=_TIMEOUT_SECS,
        )
    return secs


def _records(traces: Mapping[str, str]) -> dict[str, BestTrace]:
    return {
        workload: BestTrace(0, trace, hashlib.sha256(trace.encode()).hexdigest(), 1e-3)
        for workload, trace in traces.items()
    }


def _change_one_layer(source: Path, changed: Path) -> None:
    model = onnx.load(source)
    relus = [node for node in model.graph.node if node.op_type == "Relu"]
    relus[len(relus) // 2].op_type = "Sigmoid"
    onnx.save(model, changed)


def _n_misses(built: BuiltLibrary) -> int:
    return sum(not step.hit for step in built.steps)


if __name__ == "__main__":
    main()
