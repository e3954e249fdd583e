"""Comparison of both engines with TVM's own drivers: trials per hour and final latencies.

Four drivers tune the same network with the same trials, trials per round and evaluator settings,
one after the other on this machine: the tuner with MetaSchedule (relax) and with Ansor (relay),
TVM's tune_relax and the TaskScheduler of TVM 0.19. Then the four libraries are timed in turns.
Needs the environment of the engine relay, and at least as many trials as Ansor has tasks. Prints
one JSON line.

    python -m benchmarks.engines --model squeezenet --trials 330 --per-round 10
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import tune_relax
from benchmarks._models import light_model
from benchmarks._tuners import Plan, Racer, Tuned, build_ours, library_of, race, tune_ours
from benchmarks._workers import open_worker
from tuner.context import open_context
from tuner.jobs.preparation import Prepared
from tuner.settings import Settings, read_settings
from tuner.workers.pool import Pool

_DRIVER = "benchmarks._ansor"
_NAMES = ("relax", "tune_relax", "relay", "auto_scheduler")


def main() -> None:
    """Run the comparison of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="squeezenet", help="a light ONNX model, or a file")
    parser.add_argument("--trials", type=int, default=330)
    parser.add_argument("--per-round", type=int, default=10)
    arguments = parser.parse_args()
    is_file = arguments.model.endswith(".onnx")
    model = arguments.model if is_file else light_model(arguments.model)
    plan = Plan(model, arguments.trials, arguments.per_round)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_compare(plan, Path(folder))), flush=True)


def _compare(plan: Plan, folder: Path) -> dict[str, Any]:
    with open_context(None, folder / "data", engine="relax") as context:
        relax = tune_relax.tune_both(context, plan, folder)
    ours, peer, racers = _tune_by_ansor(plan, folder)
    tuned = (relax.ours, relax.peer, ours, peer)
    secs = race([*relax.racers, *racers], relax.prepared.model.file.inputs)
    return {
        "benchmark": "engines",
        "model": Path(plan.model).stem,
        "trials_per_round": plan.per_round,
        **{
            name: {
                "trials": result.n_trials,
                "secs": round(result.secs, 1),
                "trials_per_hour": round(result.trials_per_hour),
                "untuned": result.n_untuned,
                "latency_ms": round(latency * 1e3, 4),
            }
            for name, result, latency in zip(_NAMES, tuned, secs, strict=True)
        },
        "relax_rate_ratio": round(relax.ours.trials_per_hour / relax.peer.trials_per_hour, 2),
        "relay_rate_ratio": round(ours.trials_per_hour / peer.trials_per_hour, 2),
        "relax_latency_ratio": round(secs[0] / secs[1], 3),
        "relay_latency_ratio": round(secs[2] / secs[3], 3),
    }


def _tune_by_ansor(plan: Plan, folder: Path) -> tuple[Tuned, Tuned, Sequence[Racer]]:
    with open_context(None, folder / "data", engine="relay") as context:
        ours, prepared = tune_ours(context, plan)
        library = library_of(context, build_ours(context, prepared, folder / "relay-ours"))
    settings = read_settings({"data_dir": folder / "data", "engine": f"relay:{_DRIVER}"})
    peer = _run_driver(settings, prepared, plan, folder)
    return ours, peer, (library, _driver_of(settings, folder))


def _run_driver(settings: Settings, prepared: Prepared, plan: Plan, folder: Path) -> Tuned:
    asked = (prepared.model.file, prepared.target.spec)
    log = str(folder / "ansor.json")
    with open_worker(settings) as worker:
        result = worker.call(_DRIVER, "tune", *asked, plan.trials, plan.per_round, log)
    with open_worker(settings) as worker:
        worker.call(_DRIVER, "build", *asked, log, str(folder / "peer.so"))
    return Tuned(result["n_trials"], result["secs"], result["n_untuned"])


def _driver_of(settings: Settings, folder: Path) -> Racer:
    def run(worker: Pool, inputs: str, n_runs: int) -> Sequence[float]:
        samples: Sequence[float] = worker.call(
            _DRIVER, "run", str(folder / "peer.so"), inputs, n_runs
        )
        return samples

    return Racer(settings, run)


if __name__ == "__main__":
    main()
