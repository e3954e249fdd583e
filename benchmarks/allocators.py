"""Trials that each allocator needs to come near the final latency, on recorded curves.

Replays every allocator on the curves under ``benchmarks/curves`` (networks measured with
round-robin, so that no task is favoured) and prints one JSON line: trials by network, and the
geometric mean over the networks of the ratio of round-robin's trials to them.

    python -m benchmarks.allocators --within 0.02
"""

import argparse
import json
import time
from pathlib import Path

from scheduler.allocators import ALLOCATORS
from tuner.job_replay import recording as recordings
from tuner.job_replay.compare import GOALS, compare, geometric_means, plot

_CURVES = Path(__file__).parent / "curves"


def main() -> None:
    """Run the comparison of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--within", type=float, default=0.02, choices=GOALS)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds to average over")
    parser.add_argument("--plot", type=Path, help="draw latency over trials, as PNG")
    arguments = parser.parse_args()
    curves = [recordings.read(path) for path in sorted(_CURVES.glob("*.jsonl.gz"))]
    if not curves:
        parser.error(f"no recordings under {_CURVES}")
    started = time.monotonic()
    runs = [
        compare(curves, ALLOCATORS, cost_aware=False, seed=seed) for seed in range(arguments.seeds)
    ]
    secs = time.monotonic() - started
    if arguments.plot:
        plot(runs[0], arguments.plot)
    means = [geometric_means(run, "round-robin", arguments.within) for run in runs]
    print(
        json.dumps(
            {
                "benchmark": "allocators",
                "within": arguments.within,
                "networks": len(curves),
                "fewer_trials_than_round_robin": {
                    name: round(sum(mean.get(name, 0.0) for mean in means) / len(means), 3)
                    for name in ALLOCATORS
                },
                "trials": {
                    f"{result.network} {result.allocator}": reached.trials
                    for result in runs[0]
                    for reached in result.reached
                    if reached.within == arguments.within
                },
                "secs_per_replay": round(secs / (len(curves) * len(ALLOCATORS) * len(runs)), 4),
            }
        )
    )


if __name__ == "__main__":
    main()
