"""Dependencies and settings that measurements share."""

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from tuner.devices.cpu_gate import CpuGate
from tuner.engines.base import EvaluatorSettings
from tuner.executors.base import Executor
from tuner.measure.crash_counts import CrashCounts


@dataclass(frozen=True)
class MeasureContext:
    """Dependencies of every measurement of one coordinator.

    Attributes:
        executor: Builders, and the store of their artifacts.
        data_dir: Directory that holds the references.
        cpu_gate: Gate that keeps builders from disturbing a CPU that is timed.
        crash_counts: Losses of devices by candidate.
        reference_locks: Lock of each reference file in use, so that each is computed once.
        rounds_building: Rounds with candidates to build, which share the builders.
    """

    executor: Executor
    data_dir: Path
    cpu_gate: CpuGate = field(default_factory=CpuGate)
    crash_counts: CrashCounts = field(default_factory=CrashCounts)
    reference_locks: MutableMapping[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    rounds_building: set[object] = field(default_factory=set)


@dataclass(frozen=True)
class MeasureSetup:
    """Target of measurements, and the settings under which they compare.

    Attributes:
        context: Dependencies.
        target: Canonical JSON of the target.
        evaluator: Settings of the timing.
        build_timeout_secs: Longest time that building one candidate may take.
    """

    context: MeasureContext
    target: str
    evaluator: EvaluatorSettings
    build_timeout_secs: float


@dataclass(frozen=True)
class TaskUnderTest:
    """Task whose candidates are measured.

    Attributes:
        workload: Hash of its workload.
        ir: IR of its workload.
        best_secs: Best latency so far, seconds; slower candidates are timed briefly.
        input_seed: Seed of the inputs that are drawn again in each round; 0 for the same as before.
    """

    task_id: int
    workload: str
    ir: bytes
    best_secs: float = float("inf")
    input_seed: int = 0
