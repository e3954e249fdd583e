"""Trials per hour and network latency, compared with TVM's own ``tune_relax``.

Both drivers tune the same tasks of one network with the same number of trials, trials per
round and evaluator settings, one after the other on this machine. Both results are built by
the same compiler path, and the two libraries are timed in turns. Prints one JSON line.

    python -m benchmarks.tune_relax --model squeezenet --trials 870 --per-round 64
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._models import light_model
from benchmarks._tuners import (
    EVALUATOR,
    Plan,
    Racer,
    Tuned,
    build_ours,
    library_of,
    race,
    tune_ours,
)
from records.bests import BestTrace
from tuner.context import Context, open_context
from tuner.engines.base import ModelFile
from tuner.jobs.preparation import Prepared


@dataclass(frozen=True)
class Pair:
    """Results of both drivers, and their libraries."""

    ours: Tuned
    peer: Tuned
    prepared: Prepared
    racers: tuple[Racer, Racer]


def main() -> None:
    """Run the comparison of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="squeezenet", help="one of the light ONNX models")
    parser.add_argument("--trials", type=int, default=870)
    parser.add_argument("--per-round", type=int, default=64)
    arguments = parser.parse_args()
    plan = Plan(light_model(arguments.model), arguments.trials, arguments.per_round)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_compare(arguments.model, plan, Path(folder))), flush=True)


def tune_both(context: Context, plan: Plan, folder: Path) -> Pair:
    """Tune with the tuner and with tune_relax, and build both by the same compiler path."""
    ours, prepared = tune_ours(context, plan)
    peer_result = _run_peer(prepared, plan, folder)
    best = {
        workload: BestTrace(0, trace, hashlib.sha256(trace.encode()).hexdigest(), 0.0)
        for workload, trace in peer_result["traces"].items()
    }
    racers = (
        library_of(context, build_ours(context, prepared, folder / "relax-ours")),
        library_of(context, build_ours(context, prepared, folder / "relax-peer", best)),
    )
    peer = Tuned(peer_result["n_trials"], peer_result["secs"], peer_result["n_untuned"])
    return Pair(ours, peer, prepared, racers)


def _compare(model: str, plan: Plan, folder: Path) -> dict[str, Any]:
    with open_context(None, folder / "data") as context:
        both = tune_both(context, plan, folder)
    latency, peer_latency = race(both.racers, both.prepared.model.file.inputs)
    return {
        "benchmark": "tune_relax",
        "model": model,
        "trials_per_round": plan.per_round,
        "trials": both.ours.n_trials,
        "secs": round(both.ours.secs, 1),
        "peer_trials": both.peer.n_trials,
        "peer_secs": round(both.peer.secs, 1),
        "trials_per_hour": round(both.ours.trials_per_hour),
        "peer_trials_per_hour": round(both.peer.trials_per_hour),
        "rate_ratio": round(both.ours.trials_per_hour / both.peer.trials_per_hour, 2),
        "latency_ms": round(latency * 1e3, 4),
        "peer_latency_ms": round(peer_latency * 1e3, 4),
        "latency_ratio": round(latency / peer_latency, 3),
        "peer_untuned": both.peer.n_untuned,
    }


def _run_peer(prepared: Prepared, plan: Plan, folder: Path) -> dict[str, Any]:
    """Run tune_relax in a process of its own."""
    queue: Any = multiprocessing.get_context("spawn").Queue()
    process = multiprocessing.get_context("spawn").Process(
        target=_peer,
        args=(
            queue,
            prepared.model.file,
            prepared.target.spec,
            str(folder / "peer"),
            plan.trials,
            plan.per_round,
        ),
    )
    process.start()
    result: dict[str, Any] = queue.get()
    process.join()
    return result


def _peer(
    queue: Any, model: ModelFile, spec: str, work_dir: str, trials: int, per_round: int
) -> None:
    """Tune with TVM's own driver and return its best traces by the tuner's workload hashes."""
    os.dup2(2, 1)  # its log goes to stderr; stdout is for the JSON line
    from tvm.s_tir.meta_schedule.relax_integration import tune_relax
    from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, LocalRunner

    from tuner.engines.relax import traces
    from tuner.engines.relax.extract import find_subgraphs
    from tuner.engines.relax.lower import lower
    from tuner.engines.relax.targets import make_target

    target = make_target(spec)
    module = lower(model, target, is_whole=True).module
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
                number=EVALUATOR["number"],
                repeat=EVALUATOR["repeat"],
                min_repeat_ms=EVALUATOR["min_repeat_ms"],
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


if __name__ == "__main__":
    main()
