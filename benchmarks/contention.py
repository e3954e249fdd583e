"""Latencies of the same candidates alone and beside a process that uses one core.

Times records of a network again through the path of every trial: alone, beside a process that is
busy half of the time, and alone again. Prints one JSON line: how far the latencies differ, how many
samples were taken again, and what that cost.

    python -m benchmarks.versus --only light-squeezenet --seconds 60 --data-dir build/contention
    python -m benchmarks.contention --model squeezenet --data-dir build/contention/light-squeezenet
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from sqlalchemy import select

from benchmarks._models import light_model
from benchmarks._workers import open_worker
from records import bests, tasks
from records.models import MeasureRecord
from tuner.context import Context, open_context
from tuner.devices.device import Device
from tuner.engines.base import Candidate, EvaluatorSettings, RunResult
from tuner.executors.factory import open_executor
from tuner.jobs.preparation import Prepared, prepare
from tuner.jobs.requests import ModelRequest
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.round_measurement import RoundMeasurement
from tuner.tuning import event_loop
from tuner.tuning.context import TuningContext

_BURN = """
import time
while True:
    until = time.perf_counter() + {busy}
    while time.perf_counter() < until: pass
    time.sleep({busy})
"""


@dataclass
class Pass:
    """Results of all candidates in one pass, by task and trace, and its duration in seconds."""

    results: dict[tuple[int, str], RunResult] = field(default_factory=dict)
    secs: float = 0.0

    def latency(self, key: tuple[int, str], *, in_clocks: bool) -> float:
        """Return the median of a candidate's samples; NaN for a failure.

        Args:
            key: Task and trace.
            in_clocks: True for runs of the clock kernel instead of seconds, as in a record: NaN if
                that was disturbed.
        """
        result = self.results[key]
        unit = (result.clock_secs or float("nan")) if in_clocks else 1.0
        return median(result.run_secs or [float("nan")]) / unit

    def count(self, name: str) -> int:
        """Add up a number in the conditions of all results."""
        return sum((result.conditions or {}).get(name, 0) for result in self.results.values())

    @property
    def n_samples(self) -> int:
        """Samples that count."""
        return sum(len(result.run_secs or ()) for result in self.results.values())


def main() -> None:
    """Run the comparison of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="squeezenet")
    parser.add_argument("--data-dir", type=Path, default=Path("build/contention"))
    parser.add_argument("--candidates", type=int, default=48)
    parser.add_argument("--busy-ms", type=float, default=10.0, help="length of a burst and a pause")
    arguments = parser.parse_args()
    with open_context(None, arguments.data_dir) as context:
        before, loaded, after = _measure(context, arguments)
    print(json.dumps({"benchmark": "contention", **_compare(before, loaded, after)}))


def _measure(context: Context, arguments: argparse.Namespace) -> list[Pass]:
    zoo = arguments.model.startswith("zoo:")
    name = arguments.model if zoo else light_model(arguments.model)
    request = ModelRequest(name, random_weights=None if zoo else 0)
    with open_worker(context.settings) as worker:
        prepared = prepare(request, context, worker, must_run=True)
    rounds = _rounds(context, prepared, arguments.candidates)
    burn = [sys.executable, "-c", _BURN.format(busy=arguments.busy_ms / 1e3)]
    with open_executor(context.settings) as executor:
        for call in executor.warm_up():
            call.result()

        async def measure_all() -> list[Pass]:
            tuning = TuningContext(context.sessions, executor, context.settings.data_dir)
            device = await tuning.device_for(prepared.target)
            evaluator = EvaluatorSettings(network_bytes=prepared.n_bytes)
            setup = MeasureSetup(tuning.measure_context, prepared.target.spec, evaluator, 60.0)
            passes = []
            for is_busy in (False, True, False):
                with ExitStack() as stack:
                    if is_busy:
                        rival = stack.enter_context(subprocess.Popen(burn))
                        stack.callback(rival.kill)
                    passes.append(await _time(setup, device, rounds))
            return passes

        return event_loop.run(measure_all())


def _rounds(
    context: Context, prepared: Prepared, n_candidates: int
) -> list[tuple[TaskUnderTest, list[Candidate]]]:
    """Return the fastest records of the tasks with the largest share, and as many others."""
    rounds = []
    with context.sessions() as session:
        latencies = bests.best_latencies(session, [task.task_id for task in prepared.tasks])
        ranked = sorted(
            (task for task in prepared.tasks if task.task_id in latencies),
            key=lambda task: -task.weight * latencies[task.task_id],
        )
        for task in ranked[: n_candidates // 4]:
            stmt = select(MeasureRecord).where(
                MeasureRecord.task_id == task.task_id, MeasureRecord.verified
            )
            records = list(session.scalars(stmt.order_by(MeasureRecord.latency)))
            chosen = [*records[:2], *records[2 :: max((len(records) - 2) // 2, 1)][:2]]
            under_test = TaskUnderTest(
                task.task_id,
                task.workload_hash,
                tasks.workload_ir(session, task.task_id),
                latencies[task.task_id],
            )
            candidates = [Candidate(one.trace, one.module_hash or "", b"", 0.0) for one in chosen]
            rounds.append((under_test, candidates))
    return rounds


@dataclass(frozen=True)
class _Collector:
    task_id: int
    into: Pass

    def on_device_acquired(self) -> None:
        """Do nothing."""

    def on_result(self, candidate: Candidate, result: RunResult) -> None:
        """Keep the result."""
        self.into.results[self.task_id, candidate.trace] = result


async def _time(
    setup: MeasureSetup, device: Device, rounds: Sequence[tuple[TaskUnderTest, list[Candidate]]]
) -> Pass:
    done = Pass()
    for task, candidates in rounds:
        started = time.perf_counter()
        collector = _Collector(task.task_id, done)
        await RoundMeasurement(setup, task, device, collector).measure(candidates)
        done.secs += time.perf_counter() - started
        await asyncio.sleep(0)
    return done


def _compare(before: Pass, loaded: Pass, after: Pass) -> dict[str, Any]:
    keys = [key for key, result in before.results.items() if result.run_secs]
    return {
        "candidates": len(keys),
        "loaded_to_unloaded": _spread(keys, before, loaded, in_clocks=True),
        "unloaded_to_unloaded": _spread(keys, before, after, in_clocks=True),
        "loaded_to_unloaded_samples": _spread(keys, before, loaded, in_clocks=False),
        "unloaded_to_unloaded_samples": _spread(keys, before, after, in_clocks=False),
        "passes": [
            {
                "samples": one.n_samples,
                "repeated": one.count("repeated"),
                "marked_disturbed": one.count("disturbed"),
                "secs": round(one.secs, 2),
            }
            for one in (before, loaded, after)
        ],
    }


def _spread(
    keys: Sequence[tuple[int, str]], one: Pass, other: Pass, *, in_clocks: bool
) -> dict[str, float]:
    before = np.array([one.latency(key, in_clocks=in_clocks) for key in keys])
    after = np.array([other.latency(key, in_clocks=in_clocks) for key in keys])
    both = np.isfinite(before) & np.isfinite(after)
    if not both.any():
        return {"candidates": 0}
    ratios = after[both] / before[both]
    return {
        "candidates": int(both.sum()),
        "median": round(float(np.median(ratios)), 4),
        "p5": round(float(np.percentile(ratios, 5)), 4),
        "p95": round(float(np.percentile(ratios, 95)), 4),
        "within_5_percent": round(float(np.mean(np.abs(ratios - 1.0) <= 0.05)), 3),
        "of_sums": round(float(after[both].sum() / before[both].sum()), 4),
    }


if __name__ == "__main__":
    main()
