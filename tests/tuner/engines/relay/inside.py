"""Functions for the worker of the engine relay, which inspect internals beyond the contract."""

import json

from tuner.engines.relay import tvm_compat  # noqa: F401  before anything imports TVM

# isort: split
from tvm import auto_scheduler
from tvm.relay import testing

from tuner.engines.relay import propose, targets, traces, workloads


def replay(ir: bytes, target: str, trace: str) -> tuple[str, str]:
    """Replay a trace; return the trace and the hash of its program."""
    task = workloads.make_task(ir, target)
    state = traces.replay(task, trace)
    return traces.dump(task, state), propose.hash_of(state)


def through_a_log(ir: bytes, target: str, trace: str, path: str) -> tuple[str, str, str]:
    """Write a trace to a log, let Ansor read it, and return key, trace and workload hash."""
    task = workloads.make_task(ir, target)
    with open(path, "w") as stream:  # noqa: PTH123
        stream.write(traces.line_of(task, trace, [0.5]) + "\n")
    ((inputs, result),) = auto_scheduler.load_records(path)
    line = auto_scheduler.measure_record.dump_record_to_string(inputs, result)
    written = json.loads(line)
    assert written["r"][0] == [0.5]
    (key, *_), (_, steps) = written["i"]
    return key, json.dumps(steps, separators=(",", ":")), str(task.workload_key)


def keys_of_testing(image: int, target: str) -> list[str]:
    """Return the workload hashes of the ResNet-18 of relay.testing."""
    module, params = testing.resnet.get_workload(
        num_layers=18, batch_size=1, image_shape=(image, image, 3), layout="NHWC"
    )
    tasks, _ = auto_scheduler.extract_tasks(
        module["main"],
        params,
        targets.make_target(target),
        hardware_params=targets.hardware_of(target),
    )
    return sorted(workloads.name_of(workloads.dump(task)) for task in tasks)


def key_of(ir: bytes) -> str:
    """Return Ansor's key of a workload."""
    return workloads.key_of(ir)


def best_of(path: str, ir: bytes, target: str) -> list[list[object]]:
    """Return the steps that ApplyHistoryBest finds for a workload in a log; empty if it misses."""
    task = workloads.make_task(ir, target)
    best = auto_scheduler.ApplyHistoryBest(path)
    with best:
        state = auto_scheduler.DispatchContext.current.query(
            task.target, task.workload_key, True, task.compute_dag, "kernel"
        )
    if state is None:
        return []
    steps: list[list[object]] = json.loads(traces.dump(task, state))
    return steps
