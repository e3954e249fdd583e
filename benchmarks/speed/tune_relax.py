"""Trials per hour and network latency, compared with TVM's own ``tune_relax``.

Both drivers tune the same tasks of one network with the same number of trials, trials per
round and evaluator settings, one after the other on this machine. Both results are built by
the same compiler path, and the two libraries are timed in turns. Prints one JSON line.

    python -m benchmarks.speed.tune_relax --model squeezenet --trials 870 --per-round 64
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.models import light_model
from benchmarks.workers import open_worker
from records.bests import BestTrace
from tuner.compile.bench.bench_model import draw_inputs
from tuner.compile.build_library import build_library
from tuner.context import Context, open_context
from tuner.engines.base import ModelFile, NetworkRun
from tuner.jobs.preparation import Prepared, prepare
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.library.arrays import write_arrays
from tuner.library.manifest import Inputs
from tuner.tuning.run_local import run_tuning

_EVALUATOR: dict[str, Any] = {"number": 1, "repeat": 3, "min_repeat_ms": 10, "cache_flush": False}
_TURNS = 8
_RUNS_A_TURN = 5
_TIMEOUT_SECS = 300.0


@dataclass(frozen=True)
class Plan:
    """Task of both drivers: a model, a number of trials, and trials per round."""

    model: str
    trials: int
    per_round: int

    @property
    def request(self) -> ModelRequest:
        """Model with random weights, since the models of benchmarks come without weights."""
        return ModelRequest(self.model, random_weights=0)


@dataclass(frozen=True)
class Tuned:
    """Trials of a driver, and its seconds."""

    n_trials: int
    secs: float

    @property
    def trials_per_hour(self) -> float:
        """Rate, including search, builds and training."""
        return self.n_trials / self.secs * 3600.0


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


def _compare(model: str, plan: Plan, folder: Path) -> dict[str, Any]:
    with open_context(None, folder / "data") as context:
        ours, prepared = _tune_ours(context, plan)
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
        best = {
            workload: BestTrace(0, trace, hashlib.sha256(trace.encode()).hexdigest(), 0.0)
            for workload, trace in result["traces"].items()
        }
        libraries = (
            _build(context, prepared, folder / "ours"),
            _build(context, prepared, folder / "peer", best),
        )
        latency, peer_latency = _race(context, libraries, prepared.model.file.inputs)
    peer = Tuned(result["n_trials"], result["secs"])
    return {
        "benchmark": "tune_relax",
        "model": model,
        "trials_per_round": plan.per_round,
        "trials": ours.n_trials,
        "secs": round(ours.secs, 1),
        "peer_trials": peer.n_trials,
        "peer_secs": round(peer.secs, 1),
        "trials_per_hour": round(ours.trials_per_hour),
        "peer_trials_per_hour": round(peer.trials_per_hour),
        "rate_ratio": round(ours.trials_per_hour / peer.trials_per_hour, 2),
        "latency_ms": round(latency * 1e3, 4),
        "peer_latency_ms": round(peer_latency * 1e3, 4),
        "latency_ratio": round(latency / peer_latency, 3),
        "peer_untuned": result["n_untuned"],
    }


def _tune_ours(context: Context, plan: Plan) -> tuple[Tuned, Prepared]:
    """Tune as ``tuner tune`` does."""
    started = time.monotonic()
    (result,) = run_tuning(
        context,
        TuneRequest(
            (plan.request,),
            TuneSpec(trials=plan.trials, trials_per_round=plan.per_round, **_EVALUATOR),
        ),
    )
    secs = time.monotonic() - started
    with open_worker(context.settings) as worker:
        prepared = prepare(plan.request, context, worker, must_run=True)
    return Tuned(result.n_measured, secs), prepared


def _build(
    context: Context,
    prepared: Prepared,
    out: Path,
    best: Mapping[str, BestTrace] | None = None,
) -> Path:
    """Build with the best records, or with given traces by workload."""
    with open_worker(context.settings) as worker:
        return build_library(context, [prepared], worker, out, best=best).folder


def _race(context: Context, libraries: Sequence[Path], inputs: Inputs) -> list[float]:
    """Return the median latency of each library in seconds; separate processes take turns."""
    samples: list[list[float]] = [[] for _ in libraries]
    with ExitStack() as opened, tempfile.TemporaryDirectory() as folder:
        stored = str(Path(folder) / "inputs.npz")
        write_arrays(stored, draw_inputs(inputs, 0))
        workers = [opened.enter_context(open_worker(context.settings)) for _ in libraries]
        for _ in range(_TURNS):
            for library, worker, secs in zip(libraries, workers, samples, strict=True):
                request = NetworkRun(str(library), stored, "", _RUNS_A_TURN)
                secs.extend(
                    worker.call(
                        context.settings.engine, "run_network", request, timeout_secs=_TIMEOUT_SECS
                    )
                )
    return [median(secs) for secs in samples]


def _peer(
    queue: Any, model: ModelFile, spec: str, work_dir: str, trials: int, per_round: int
) -> None:
    """Tune with TVM's own driver and return its best traces by the tuner's workload hashes."""
    os.dup2(2, 1)  # its log goes to stderr; stdout is for the JSON line
    from tvm.s_tir.meta_schedule.relax_integration import tune_relax
    from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, LocalRunner

    from tuner.engines.relax.graph.extract import find_subgraphs
    from tuner.engines.relax.graph.pipeline import lower
    from tuner.engines.relax.ir import traces
    from tuner.engines.relax.target.targets import make_target

    target = make_target(spec)
    module = lower(model, target, is_whole=True)
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


if __name__ == "__main__":
    main()
