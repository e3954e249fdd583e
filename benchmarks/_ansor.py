"""Ansor's own driver, as in TVM's tutorial; runs in the environment of the engine relay."""

import os
import time
from pathlib import Path
from typing import Any

from tuner.engines.base import ModelFile
from tuner.engines.relay import tvm_compat  # noqa: F401  before anything imports TVM
from tuner.engines.relay.importer import import_model
from tuner.engines.relay.targets import hardware_of, make_target

_EVALUATOR = {"number": 1, "repeat": 3, "min_repeat_ms": 10, "enable_cpu_cache_flush": False}


def tune(model: ModelFile, spec: str, trials: int, per_round: int, log: str) -> dict[str, Any]:
    """Tune a network by TVM's TaskScheduler into a log; return trials, seconds, untuned tasks."""
    from tvm import auto_scheduler

    tasks, weights = auto_scheduler.extract_tasks(
        import_model(model)["main"], {}, make_target(spec), hardware_params=hardware_of(spec)
    )
    os.chdir(
        Path(log).parent
    )  # TaskScheduler writes a file of latencies into the working directory
    started = time.monotonic()
    auto_scheduler.TaskScheduler(tasks, weights).tune(
        auto_scheduler.TuningOptions(
            num_measure_trials=trials,
            num_measures_per_round=per_round,
            builder=auto_scheduler.LocalBuilder(),
            runner=auto_scheduler.LocalRunner(**_EVALUATOR),
            measure_callbacks=[auto_scheduler.RecordToFile(log)],
            verbose=0,
        )
    )
    secs = time.monotonic() - started
    tuned = {str(task.workload_key) for task in tasks} & _workloads_in(log)
    n_trials = len(Path(log).read_text().splitlines())
    return {"secs": secs, "n_trials": n_trials, "n_untuned": len(tasks) - len(tuned)}


def build(model: ModelFile, spec: str, log: str, out: str) -> None:
    """Build the network with the best records of a log into a file."""
    from tvm import auto_scheduler, relay
    from tvm.ir.transform import PassContext

    module = import_model(model)
    config = {"relay.backend.use_auto_scheduler": True}
    with auto_scheduler.ApplyHistoryBest(log), PassContext(opt_level=3, config=config):
        relay.build(module, target=make_target(spec)).export_library(out)


def run(library: str, inputs: str, n_runs: int) -> tuple[float, ...]:
    """Return seconds of runs of a built network on stored inputs, after two untimed runs."""
    import numpy as np
    import tvm
    from tvm.contrib import graph_executor

    executor = graph_executor.GraphModule(tvm.runtime.load_module(library)["default"](tvm.cpu()))
    with np.load(inputs) as stored:
        for name in stored.files:
            executor.set_input(name, stored[name])
    samples = []
    for _ in range(n_runs + 2):
        started = time.perf_counter()
        executor.run()
        samples.append(time.perf_counter() - started)
    return tuple(samples[2:])


def _workloads_in(log: str) -> set[str]:
    from tvm import auto_scheduler

    records = auto_scheduler.RecordReader(log)
    return {str(line.task.workload_key) for line, result in records if result.error_no == 0}
