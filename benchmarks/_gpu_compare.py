"""Step of the GPU report that compares a network with torch."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import _gpu_peers as peers
from benchmarks._gpu_bench import Bench
from benchmarks._gpu_commands import StepError
from benchmarks._gpu_networks import Network
from benchmarks._gpu_race import FAILURES, Race, Runs, explain, relative_error, summarise
from benchmarks._gpu_steps import OURS, PEERS, judge
from benchmarks._workers import open_worker
from tuner.engines.base import NetworkRun
from tuner.workers.future_call import FutureCall
from tuner.workers.pool import Pool

# Share of the step's time for the set-up of peers: compiling tries kernels for minutes.
_PEERS_SHARE = 0.6
_N_TURNS_UNTUNED, _N_TURNS = 2, 6
# A second build and race takes about as long as the first.
_AGAIN = 1.25
# Shorter tuning has no effect.
_MIN_TUNING_SECS = 20.0
# Tolerance in machine epsilons, relative to the largest output: rounding errors of half an epsilon
# in each of dozens of layers add up. The report also has torch's own error.
_N_EPSILONS = 16


def compare(bench: Bench, name: str) -> None:
    """Time a library in turns with torch: untuned, then tuned for as long as the time allows.

    Raises:
        StepError: If there is no library, or it does not run.
    """
    network = Network(name, "float16", bench.sizes)
    model = str(bench.scratch(f"{name}.onnx"))
    inputs = bench.keep_inputs(network.inputs())
    with open_worker(bench.settings, "export") as worker:
        words = ("benchmarks._gpu_networks", "export", network, model)
        worker.call(*words, timeout_secs=bench.left_secs)
    with ExitStack() as stack:
        rivals = Rivals(bench, network, inputs, stack)
        rivals.set_up()
        # Builds do not disturb the peers, because they do not use the GPU.
        build, problem = _try_build(bench, model)
        rivals.wait()
        begun = bench.timer.spent
        bench.note(peers=rivals.ready, left_out=rivals.left_out)
        bench.note(untuned=rivals.race("untuned" if build else "", build, _N_TURNS_UNTUNED))
        if problem:
            raise StepError(problem)
        after = bench.timer.spent - begun + float((build or {}).get("secs", 0.0))
        _go_on(bench, model, rivals, bench.timer.left - _AGAIN * after)


def _try_build(bench: Bench, model: str) -> tuple[dict[str, Any] | None, str]:
    """Build without records; note the reason if that fails."""
    try:
        return bench.build(model, "untuned"), ""
    except StepError as error:
        return None, str(error)


def _go_on(bench: Bench, model: str, rivals: "Rivals", secs: float) -> None:
    """Tune for ``secs`` seconds, and compare again."""
    if secs < _MIN_TUNING_SECS:
        bench.note(not_reached=f"tuning, for which {max(secs, 0.0):.0f} s of the step were left")
        return
    bench.note(tuning=bench.tune(model, secs))
    bench.note(tuned=rivals.race("tuned", bench.build(model, "tuned"), _N_TURNS))


@dataclass
class Rivals:
    """Peers of torch, each in a worker of its own.

    Attributes:
        bench: Context of the step.
        network: Network to run.
        inputs: File of inputs for the library.
        stack: Exit stack that closes the workers.
        ready: Seconds of the set-up by name, after :meth:`wait`.
        left_out: Reason for the absence of a peer, by name.
    """

    bench: Bench
    network: Network
    inputs: Path
    stack: ExitStack
    ready: dict[str, dict[str, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    _workers: dict[str, Pool] = field(default_factory=dict)
    _calls: dict[str, FutureCall] = field(default_factory=dict)

    def set_up(self) -> None:
        """Start the workers and return at once."""
        kinds = [peers.EAGER, peers.COMPILED]
        if self.bench.device == "cuda":
            kinds.append(peers.GRAPH)
        else:
            self.left_out[peers.GRAPH] = "CUDA graphs need a GPU"
        secs = self.bench.timer.left * _PEERS_SHARE
        for kind in kinds:
            worker = open_worker(
                self.bench.settings, f"peer-{len(self._workers)}", environ=self._environ
            )
            self._workers[kind] = self.stack.enter_context(worker)
            words = (self.network, kind, self.bench.device, self.bench.n_threads)
            self._calls[kind] = worker.submit(PEERS, "set_up", *words, timeout_secs=secs)

    @property
    def _environ(self) -> dict[str, str]:
        """Store compiler caches with the step, so that a second run reuses them."""
        return {"TORCHINDUCTOR_CACHE_DIR": str(self.bench.scratch("inductor"))}

    def wait(self) -> None:
        """Wait until every peer is ready, or left out."""
        for kind, call in self._calls.items():
            try:
                self.ready[kind] = call.result()
            except FAILURES as error:
                self.left_out[kind] = explain(error)

    def race(self, library: str, build: Mapping[str, Any] | None, n_turns: int) -> dict[str, Any]:
        """Compare and time a library with the ready peers, or time only the peers."""
        with open_worker(self.bench.settings, "bench-library") as worker:
            runners = {kind: self._runs(kind) for kind in self.ready}
            if library:
                runners = {OURS: self.bench.ours(worker, library, self.inputs), **runners}
            race = Race(runners)
            agreement = self._agreement(race)
            race.run(n_turns, self.bench.timer)
        return {
            "build": build,
            "agreement": agreement,
            "latency": {name: summarise(taken) for name, taken in race.samples.items()},
            "ratio": _ratios(race.samples),
            "left_out": race.left_out,
            "n_turns": race.n_turns,
        }

    def _runs(self, kind: str) -> Runs:
        def run(n_runs: int, outputs: str) -> tuple[float, ...]:
            request = NetworkRun("", "", outputs, n_runs)
            words = (PEERS, "run", self.network, kind, request)
            secs: tuple[float, ...] = self._workers[kind].call(
                *words, timeout_secs=self.bench.patience_secs, returns=tuple[float, ...]
            )
            return secs

        return run

    def _agreement(self, race: Race) -> dict[str, Any]:
        """Compare outputs with those of the same weights in float32."""
        if OURS not in race.runners or peers.EAGER not in race.runners:
            return {"problem": f"the comparison needs {OURS} and {peers.EAGER}"}
        paths = {name: self.bench.scratch(f"{name}.npz") for name in ("ours", "eager", "precise")}
        race.take(OURS, 0, str(paths["ours"]))
        race.take(peers.EAGER, 0, str(paths["eager"]))
        if race.left_out:
            return {"problem": "; ".join(race.left_out.values())}
        words = (PEERS, "run_precisely", self.network, self.bench.device, str(paths["precise"]))
        try:
            self._workers[peers.EAGER].call(*words, timeout_secs=self.bench.patience_secs)
        except FAILURES as error:
            return {"problem": explain(error)}
        tolerance = _N_EPSILONS * float(np.finfo(self.network.dtype).eps)
        return {
            **judge(relative_error(paths["ours"], paths["precise"]), tolerance),
            "torch_relative_error": relative_error(paths["eager"], paths["precise"]),
        }


def _ratios(samples: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the library's time divided by that of each peer; below 1 the library is faster."""
    if OURS not in samples:
        return {}
    ours = median(samples[OURS])
    return {name: ours / median(taken) for name, taken in samples.items() if name != OURS}
