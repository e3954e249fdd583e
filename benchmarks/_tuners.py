"""Comparison with TVM's own drivers: the shared plan, the results, the final race."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks._workers import open_worker
from records.bests import BestTrace
from tuner.compile.bench_inputs import draw_inputs
from tuner.compile.build_library import build_library
from tuner.context import Context
from tuner.engines.base import NetworkRun
from tuner.jobs.preparation import Prepared, prepare
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.library.arrays import write_arrays
from tuner.library.manifest import Inputs
from tuner.settings import Settings
from tuner.tuning.run_local import run_tuning
from tuner.workers.pool import Pool

EVALUATOR: dict[str, Any] = {"number": 1, "repeat": 3, "min_repeat_ms": 10, "cache_flush": False}
_TURNS = 8
_RUNS_A_TURN = 5
_TIMEOUT_SECS = 300.0


@dataclass(frozen=True)
class Racer:
    """Library in the final race.

    Attributes:
        settings: Settings whose workers run it.
        run: Function that times it in a worker; takes the file of inputs and the number of runs,
            returns seconds.
    """

    settings: Settings
    run: Callable[[Pool, str, int], Sequence[float]]


@dataclass(frozen=True)
class Plan:
    """Task of every driver: a model, a number of trials, and trials per round."""

    model: str
    trials: int
    per_round: int

    @property
    def request(self) -> ModelRequest:
        """Model with random weights, since the models of benchmarks come without weights."""
        return ModelRequest(self.model, random_weights=0)


@dataclass(frozen=True)
class Tuned:
    """Result of a driver; ``n_untuned`` tasks have no record."""

    n_trials: int
    secs: float
    n_untuned: int

    @property
    def trials_per_hour(self) -> float:
        """Rate, including search, builds and training."""
        return self.n_trials / self.secs * 3600.0


def tune_ours(context: Context, plan: Plan) -> tuple[Tuned, Prepared]:
    """Tune as ``tuner tune`` does."""
    started = time.monotonic()
    result = run_tuning(
        context,
        TuneRequest(
            (plan.request,),
            TuneSpec(trials=plan.trials, trials_per_round=plan.per_round, **EVALUATOR),
        ),
    )
    secs = time.monotonic() - started
    with open_worker(context.settings) as worker:
        prepared = prepare(plan.request, context, worker, must_run=True)
    n_untuned = sum(1 for best in result.snapshot.latencies if not np.isfinite(best))
    return Tuned(result.n_measured, secs, n_untuned), prepared


def build_ours(
    context: Context,
    prepared: Prepared,
    out: Path,
    best: Mapping[str, BestTrace] | None = None,
) -> Path:
    """Build with the best records, or with given traces by workload."""
    with open_worker(context.settings) as worker:
        return build_library(context, [prepared], worker, out, best=best).folder


def library_of(context: Context, folder: Path) -> Racer:
    """Enter one of the tuner's libraries into the race."""

    def run(worker: Pool, inputs: str, n_runs: int) -> Sequence[float]:
        request = NetworkRun(str(folder), inputs, "", n_runs)
        samples: Sequence[float] = worker.call(
            context.settings.engine, "run_network", request, timeout_secs=_TIMEOUT_SECS
        )
        return samples

    return Racer(context.settings, run)


def race(racers: Sequence[Racer], inputs: Inputs) -> list[float]:
    """Return the median latency of each library in seconds; separate processes take turns."""
    samples: list[list[float]] = [[] for _ in racers]
    with ExitStack() as opened, tempfile.TemporaryDirectory() as folder:
        stored = str(Path(folder) / "inputs.npz")
        write_arrays(stored, draw_inputs(inputs, 0))
        workers = [opened.enter_context(open_worker(racer.settings)) for racer in racers]
        for _ in range(_TURNS):
            for racer, worker, secs in zip(racers, workers, samples, strict=True):
                secs.extend(racer.run(worker, stored, _RUNS_A_TURN))
    return [median(secs) for secs in samples]
