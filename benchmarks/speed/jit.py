"""Cost of ``tuner.jit`` on LeNet: steps that compile every operator, and steps that compile none.

Runs two epochs of forward batches in a new data directory, the last batch of each smaller; the log
on stderr has the seconds of each step. Then measures another process, which has the libraries in
its build cache, and the overhead of a call over the library's own time. Prints one JSON line.

    python -m benchmarks.speed.jit --batch 64 --samples 1000
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner.workers.processes.python_command import run_module

# Published log of a framework that compiles operators at run time: seconds of a step in which every
# operator missed, and of one in which every operator hit.
_PUBLISHED = {"missed_secs": 0.425, "hit_secs": 0.025, "ratio": 16.9}
_GOALS = {"ratio": 17.0, "dispatch_us": 20.0}
_N_CALLS = 2000


def main() -> None:
    """Run the benchmark of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="samples of a step")
    parser.add_argument("--samples", type=int, default=1000, help="samples of an epoch")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--dir", type=Path, help="data directory [default: a temporary one]")
    parser.add_argument(
        "--quiet", dest="log_steps", action="store_false", help="do not log steps on stderr"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data_dir = arguments.dir or Path(folder)
        steps = _train(arguments, data_dir)
        if arguments.dir is None:
            print(json.dumps(_report(arguments, steps, data_dir)), flush=True)
        else:
            print(json.dumps({"steps": steps}), flush=True)


def _train(arguments: argparse.Namespace, data_dir: Path) -> list[float]:
    """Return the seconds of each step."""
    import torch

    import tuner

    network = tuner.jit(lenet(), data_dir=data_dir, name="LeNet")
    images = torch.randn(arguments.samples, 1, 32, 32)
    steps = []
    for epoch in range(1, arguments.epochs + 1):
        for number, batch in enumerate(images.split(arguments.batch), 1):
            before = network.cache_info()
            started = time.perf_counter()
            network(batch)
            steps.append(time.perf_counter() - started)
            is_hit = network.cache_info().hits > before.hits
            if arguments.log_steps:
                print(
                    f"epoch {epoch} step {number:2d} ({len(batch)} images): {steps[-1]:.6f} s, "
                    f"every operator {'hit' if is_hit else 'missed'}",
                    file=sys.stderr,
                )
    return steps


def _report(arguments: argparse.Namespace, steps: list[float], data_dir: Path) -> dict[str, Any]:
    first, second = steps[0], steps[1]
    hits = statistics.median(steps[len(steps) // 2 :])
    warm = _another_process(arguments, data_dir)
    dispatch_us = _dispatch_us(data_dir)
    print(
        f"LeNet, forward: {first:.3f} s a step with every operator missed, {hits:.6f} s with every "
        f"operator hit: {first / hits:.1f} times; published: {_PUBLISHED['missed_secs']} s, "
        f"{_PUBLISHED['hit_secs']} s, {_PUBLISHED['ratio']} times",
        file=sys.stderr,
    )
    return {
        "benchmark": "jit",
        "model": "LeNet",
        "batch": arguments.batch,
        "n_steps": len(steps),
        "first_call_secs": first,
        "second_call_secs": second,
        "hit_secs": hits,
        "ratio": first / second,
        "published": _PUBLISHED,
        "other_process_first_call_secs": warm[0],
        "other_process_second_call_secs": warm[1],
        "dispatch_us": dispatch_us,
        "goals": _GOALS,
        "reached": first / second >= _GOALS["ratio"] and dispatch_us < _GOALS["dispatch_us"],
    }


def _another_process(arguments: argparse.Namespace, data_dir: Path) -> list[float]:
    command = run_module("benchmarks.speed.jit", "--quiet", "--epochs", "1")
    sizes = ["--batch", str(arguments.batch), "--samples", str(arguments.samples)]
    done = subprocess.run(
        [*command, *sizes, "--dir", str(data_dir)], stdout=subprocess.PIPE, check=True
    )
    steps: list[float] = json.loads(done.stdout)["steps"]
    return steps


def _dispatch_us(data_dir: Path) -> float:
    """Return the median overhead of a call of a jitted LeNet, in microseconds.

    The overhead is the time of a call minus that of the bare library; both take turns on the same
    tensors.
    """
    import torch

    import tuner

    network = tuner.jit(lenet(), data_dir=data_dir, name="LeNet")
    # One image, so that kernels do not hide the dispatch.
    image = torch.randn(1, 1, 32, 32)
    network(image)
    [call] = network._cache.calls()
    program = call.served.loaded.library.programs[0]
    differences = []
    for _ in range(_N_CALLS):
        bare = _secs(lambda: program.function(image, *program.weights)[0])
        differences.append(_secs(lambda: network(image)) - bare)
    return statistics.median(differences) * 1e6


def _secs(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def lenet() -> Any:
    """LeNet-5 for images of 32x32, with seeded weights."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    ).eval()


if __name__ == "__main__":
    main()
