"""Trials per hour and network latency against TVM's own ``tune_relax``.

Both tune the same tasks of one network with the same number of trials, trials a
round and evaluator settings, one after the other on this machine; then both
results are built by the same compiler path and the two libraries are timed in
turns. Prints one JSON line.

    python -m benchmarks.tune_relax --model squeezenet --trials 870 --per-round 64
"""

import argparse
import hashlib
import json
import multiprocessing
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._models import light_model
from records.bests import BestOf
from tuner.benching import random_inputs
from tuner.building import best_of_tasks, build_library
from tuner.context import Context, open_context
from tuner.engines.base import ModelFile, NetworkRun
from tuner.preparation import ModelRequest, Prepared, prepare
from tuner.requests import TuneRequest
from tuner.tuning import run_tuning
from tuner.workers import fresh_worker

_EVALUATOR = {"number": 1, "repeat": 3, "min_repeat_ms": 10, "cache_flush": False}


def main() -> None:
    """Run the comparison that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="squeezenet", help="one of the light ONNX models")
    parser.add_argument("--trials", type=int, default=870)
    parser.add_argument("--per-round", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_compare(arguments, Path(folder))), flush=True)


def _compare(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    request = ModelRequest(light_model(arguments.model), random_weights=0)
    with open_context(None, folder / "data") as context:
        started = time.monotonic()
        result = run_tuning(
            context,
            TuneRequest(
                request,
                trials=arguments.trials,
                trials_per_round=arguments.per_round,
                evaluator=_EVALUATOR,
            ),
        )
        ours_secs = time.monotonic() - started
        with fresh_worker(context.settings) as worker:
            prepared = prepare(request, context, worker, must_run=True)
        peer = _run_peer(prepared, arguments, folder)
        traces = {w: best.trace for w, best in best_of_tasks(context, prepared.tasks).items()}
        ours, theirs = _time_in_turns(context, prepared, traces, peer["traces"], folder)
    ours_rate = result.n_measured / ours_secs
    peer_rate = peer["n_trials"] / peer["secs"]
    return {
        "benchmark": "tune_relax",
        "model": arguments.model,
        "trials_per_round": arguments.per_round,
        "trials": result.n_measured,
        "secs": round(ours_secs, 1),
        "peer_trials": peer["n_trials"],
        "peer_secs": round(peer["secs"], 1),
        "trials_per_hour": round(ours_rate * 3600),
        "peer_trials_per_hour": round(peer_rate * 3600),
        "rate_ratio": round(ours_rate / peer_rate, 2),
        "latency_ms": round(ours * 1e3, 4),
        "peer_latency_ms": round(theirs * 1e3, 4),
        "latency_ratio": round(ours / theirs, 3),
        "peer_untuned": peer["n_untuned"],
    }


def _run_peer(prepared: Prepared, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run tune_relax in a process of its own."""
    queue: Any = multiprocessing.get_context("spawn").Queue()
    process = multiprocessing.get_context("spawn").Process(
        target=_peer,
        args=(
            queue,
            prepared.model.file,
            prepared.target.spec,
            str(folder / "peer"),
            arguments.trials,
            arguments.per_round,
        ),
    )
    process.start()
    result: dict[str, Any] = queue.get()
    process.join()
    return result


def _peer(
    queue: Any, model: ModelFile, spec: str, work_dir: str, trials: int, per_round: int
) -> None:
    """Tune with TVM's own driver and report its best traces by our workload hashes."""
    from tvm.s_tir.meta_schedule.relax_integration import tune_relax
    from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, LocalRunner

    from tuner.engines.relax import traces
    from tuner.engines.relax.extract import find_subgraphs
    from tuner.engines.relax.lower import lower
    from tuner.engines.relax.targets import make_target

    target = make_target(spec)
    module = lower(model, target).module
    started = time.monotonic()
    database = tune_relax(
        mod=module,
        params={},
        target=target,
        work_dir=work_dir,
        max_trials_global=trials,
        num_trials_per_iter=per_round,
        runner=LocalRunner(
            evaluator_config=EvaluatorConfig(
                number=_EVALUATOR["number"],
                repeat=_EVALUATOR["repeat"],
                min_repeat_ms=_EVALUATOR["min_repeat_ms"],
                enable_cpu_cache_flush=False,
            )
        ),
        seed=0,
    )
    secs = time.monotonic() - started
    best = {}
    subgraphs = find_subgraphs(module)
    for subgraph in subgraphs:
        record = database.query_tuning_record(subgraph.module, target, subgraph.workload)
        if record is not None:
            best[subgraph.workload] = traces.dump(record.trace)
    queue.put(
        {
            "secs": secs,
            "n_trials": len(database),
            "traces": best,
            "n_untuned": len(subgraphs) - len(best),
        }
    )


def _time_in_turns(
    context: Context,
    prepared: Prepared,
    ours: Mapping[str, str],
    theirs: Mapping[str, str],
    folder: Path,
) -> tuple[float, float]:
    """Build both networks and return the median latency of each, seconds, timed in turns."""
    import numpy as np

    inputs = folder / "inputs.npz"
    np.savez(inputs, **random_inputs(prepared.model.file.inputs, 0))  # type: ignore[arg-type]
    libraries = [
        _compile(context, prepared, traces, folder / name)
        for name, traces in (("ours", ours), ("theirs", theirs))
    ]
    samples: list[list[float]] = [[], []]
    with fresh_worker(context.settings) as first, fresh_worker(context.settings) as second:
        workers = (first, second)
        for _ in range(8):
            for worker, library, secs in zip(workers, libraries, samples, strict=True):
                request = NetworkRun(str(library), str(inputs), "", 5)
                secs.extend(
                    worker.call(context.settings.engine, "run_network", request, timeout_secs=300)
                )
    return median(samples[0]), median(samples[1])


def _compile(context: Context, prepared: Prepared, traces: Mapping[str, str], out: Path) -> Path:
    best = {
        workload: BestOf(0, trace, hashlib.sha256(trace.encode()).hexdigest(), 0.0)
        for workload, trace in traces.items()
    }
    with fresh_worker(context.settings) as worker:
        return build_library(context, [prepared], worker, out, best=best).folder


if __name__ == "__main__":
    main()
