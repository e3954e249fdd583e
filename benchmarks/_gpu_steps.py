"""Steps of the GPU report that compare outputs only: doctor, and networks of the zoo."""

from typing import Any

from benchmarks._gpu_bench import Bench
from benchmarks._gpu_commands import StepError, ask_gpu
from benchmarks._gpu_race import FAILURES, Race, explain, relative_error, summarise
from benchmarks._workers import open_worker
from tuner.compile.bench_inputs import draw_inputs
from tuner.library import manifest

PEERS = "benchmarks._gpu_peers"
OURS = "ours"
# Seconds after tuning, for the start of processes, torch among them, and a build; at most this
# share of the remaining time.
_AFTER_SECS, _AFTER_SHARE = 45.0, 0.5
_FIRST_ROUNDS = 0.4
# More than one, since the first task may have fewer candidates than a round has trials.
_ROUND_TRIALS, _N_ROUNDS = 64, 2
_N_TURNS = 5
# Relative to the largest output.
_TOLERANCE = 1e-3
_TRIALS_PER_ROUND = 16


def doctor(bench: Bench) -> None:
    """Report versions, and the device as the engine and torch see it."""
    printed = bench.tuner("doctor", secs=bench.timer.left * 0.6)
    shown = ("name", "state", "found")
    checks = [{key: check[key] for key in shown} for check in printed.get("checks", ())]
    bench.note(checks=checks, gpu=ask_gpu() if bench.device == "cuda" else {})
    with open_worker(bench.settings, "describe") as worker:
        described = worker.call(
            bench.settings.engine, "describe_target", bench.target, timeout_secs=bench.left_secs
        )
        bench.note(target=described.spec, device=dict(described.device), problem=described.problem)
    with open_worker(bench.settings, "torch") as worker:
        seen = worker.call(PEERS, "describe", bench.device, timeout_secs=bench.left_secs)
        bench.note(torch=seen)
    if described.problem:
        raise StepError(described.problem)


def tune_small(bench: Bench, query: str) -> None:
    """Tune a network of the zoo, build it, compare its output with torch's, and time it."""
    _tune_zoo(bench, query)
    _finish(bench, query)


def tune_by_rounds(bench: Bench, query: str) -> None:
    """Do the same after some rounds of 64 trials, to measure their rate."""
    limit = bench.timer.left * _FIRST_ROUNDS
    n_trials = _ROUND_TRIALS * _N_ROUNDS
    words = ("--trials", str(n_trials), "--trials-per-round", str(_ROUND_TRIALS))
    bench.note(first_rounds=bench.tune(f"zoo:{query}", limit, *words))
    _tune_zoo(bench, query, "--trials-per-round", str(_TRIALS_PER_ROUND))
    _finish(bench, query)


def _tune_zoo(bench: Bench, query: str, *words: str) -> None:
    secs = bench.timer.left - min(_AFTER_SECS, _AFTER_SHARE * bench.timer.left)
    bench.note(tuning=bench.tune(f"zoo:{query}", secs, *words))


def _finish(bench: Bench, query: str) -> None:
    bench.note(build=bench.build(f"zoo:{query}", "tuned"))
    described = manifest.read(bench.library("tuned"))
    inputs = bench.keep_inputs(draw_inputs(described.programs[0].inputs, seed=0))
    with open_worker(bench.settings, "bench-library") as worker:
        race = Race({OURS: bench.ours(worker, "tuned", inputs)})
        race.take(OURS, 0, str(bench.scratch("ours.npz")))
        if race.left_out:
            raise StepError(f"the library does not run: {race.left_out[OURS]}")
        bench.note(agreement=_agreement(bench, query, str(inputs)))
        race.run(_N_TURNS, bench.timer)
    bench.note(latency={name: summarise(taken) for name, taken in race.samples.items()})
    if race.left_out:
        raise StepError(race.left_out[OURS])


def _agreement(bench: Bench, query: str, inputs: str) -> dict[str, Any]:
    """Compare the library's output with torch's on the same device, or note the failure."""
    expected = bench.scratch("expected.npz")
    words = (query, bench.device, inputs, str(expected))
    try:
        with open_worker(bench.settings, "torch") as worker:
            worker.call(PEERS, "run_zoo", *words, timeout_secs=bench.left_secs)
    except FAILURES as error:
        return {"problem": explain(error)}
    return judge(relative_error(bench.scratch("ours.npz"), expected), _TOLERANCE)


def judge(error: float, tolerance: float) -> dict[str, Any]:
    """Return the facts of a comparison; the error is relative to the largest output."""
    return {"relative_error": error, "tolerance": tolerance, "agrees": error <= tolerance}
