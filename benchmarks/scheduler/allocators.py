"""Trials that each allocator needs to come near the final latency, on recorded curves.

Replays every allocator on the curves under ``benchmarks/scheduler/curves`` (networks measured with
round-robin, so that no task is favoured) and prints one JSON line: trials by network, and the
geometric mean over the networks of the ratio of round-robin's trials to them. ``ansor`` is the
gradient without roofs, with groups of tasks by their operators alone. ``foresight`` knows the
result of the next round of every task, ``oracle`` knows all rounds: no rule needs fewer trials.

    python -m benchmarks.scheduler.allocators --within 0.02
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.scheduler.bounds import foresight_trials, oracle_trials
from scheduler.allocators import ALLOCATORS
from scheduler.replay import Recording
from tuner.job_replay import recording as recordings
from tuner.job_replay.compare import GOALS, Replayed, compare, plot

_CURVES = Path(__file__).parent / "curves"
_BASE = "round-robin"


def main() -> None:
    """Run the comparison of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--within", type=float, default=0.02, choices=GOALS)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds to average over")
    parser.add_argument("--curves", type=Path, default=_CURVES, help="folder of the recordings")
    parser.add_argument("--plot", type=Path, help="draw latency over trials, as PNG")
    arguments = parser.parse_args()
    curves = [recordings.read(path) for path in sorted(arguments.curves.glob("*.jsonl.gz"))]
    if not curves:
        parser.error(f"no recordings under {arguments.curves}")
    started = time.monotonic()
    runs = [_replay(curves, seed) for seed in range(arguments.seeds)]
    secs = time.monotonic() - started
    if arguments.plot:
        plot(runs[0], arguments.plot)
    trials = _mean_trials(runs, arguments.within)
    for curve in curves:
        trials["foresight", curve.network] = foresight_trials(curve, arguments.within)
        trials["oracle", curve.network] = oracle_trials(curve, arguments.within)
    networks = [curve.network for curve in curves]
    names = list(dict.fromkeys(name for name, _ in trials))
    print(
        json.dumps(
            {
                "benchmark": "allocators",
                "within": arguments.within,
                "networks": networks,
                "fewer_trials_than_round_robin": {
                    name: round(_ratio(trials, networks, name), 3) for name in names
                },
                "trials": {
                    name: [round(trials[name, network]) for network in networks] for name in names
                },
                "secs_per_replay": round(secs / (len(runs[0]) * len(runs)), 4),
            }
        )
    )


def _replay(curves: Sequence[Recording], seed: int) -> list[Replayed]:
    results = compare(curves, ALLOCATORS, cost_aware=False, seed=seed)
    bare = [_without_profiles(curve) for curve in curves]
    before = compare(bare, ["gradient"], cost_aware=False, seed=seed)
    return [*results, *(replace(result, allocator="ansor") for result in before)]


def _without_profiles(curve: Recording) -> Recording:
    """Return a recording without roofs, in which equal operators make tasks similar."""
    tasks = (
        replace(task, group=task.name.partition("[")[0], roof_secs=0.0) for task in curve.tasks
    )
    return replace(curve, tasks=tuple(tasks))


def _mean_trials(runs: Sequence[Sequence[Replayed]], within: float) -> dict[tuple[str, str], float]:
    """Return the mean over the seeds, by allocator and network."""
    return {
        (result.allocator, result.network): sum(_trials(run[index], within) for run in runs)
        / len(runs)
        for index, result in enumerate(runs[0])
    }


def _trials(result: Replayed, within: float) -> float:
    return next(reached.trials for reached in result.reached if reached.within == within)


def _ratio(trials: dict[tuple[str, str], float], networks: Sequence[str], name: str) -> float:
    """Return the geometric mean of round-robin's trials over those of an allocator."""
    logs = [math.log(trials[_BASE, each] / trials[name, each]) for each in networks]
    return math.exp(sum(logs) / len(logs))


if __name__ == "__main__":
    main()
