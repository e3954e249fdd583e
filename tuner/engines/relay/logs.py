"""Workloads, targets and schedules in the lines of Ansor's logs.

A line names its workload by a key with a hash of the graph and the shapes, so it can be matched to
known workloads only.
"""

import json
from typing import Any

from tuner.engines.log_base import LoggedWorkload, TraceBatch, TraceText, WorkloadText
from tuner.engines.relay import traces, workloads
from tuner.engines.relay.propose import hash_of
from tuner.engines.relay.targets import canonical, hardware_of, make_target
from tuner.errors import TargetError, WorkError, summary

# Names as lines spell them.
_HARDWARE = (
    "num_cores",
    "vector_unit_bytes",
    "cache_line_bytes",
    "max_shared_memory_per_block",
    "max_local_memory_per_block",
    "max_threads_per_block",
    "max_vthread_extent",
    "warp_size",
)


def read_workload(text: str) -> LoggedWorkload:
    """Refuse: see :class:`LogEngine`.

    Raises:
        WorkError: Always.
    """
    raise WorkError(f"logs of Ansor hold no workloads, but keys of them: {text}")


def write_workload(ir: bytes) -> list[WorkloadText]:
    """Return the key of a workload, and the part of a line that follows the target."""
    return [WorkloadText(workloads.key_of(ir), ir, json.dumps(workloads.options_of(ir)))]


def read_target(text: str) -> str:
    """Return the canonical JSON of a target; the text holds it and the hardware.

    Raises:
        TargetError: If it is unknown, or this engine does not support it.
    """
    written = json.loads(text)
    hardware = written["hardware"]
    if not hardware or type(hardware[0]) is not int:
        raise TargetError(f"its hardware has no number of cores: {hardware}")
    return canonical(written["target"], hardware[0])


def write_target(spec: str) -> str:
    """Return the target part of a line: its text, the hardware, and no separate host."""
    hardware = hardware_of(spec)
    numbers = [int(getattr(hardware, name)) for name in _HARDWARE]
    return json.dumps([str(make_target(spec)), numbers, ""])


def read_traces(batch: TraceBatch) -> list[TraceText]:
    """Replay the steps of states; see :class:`LogEngine`."""
    task = workloads.make_task(batch.ir, batch.target)
    return [_read_trace(task, text) for text in batch.texts]


def write_traces(batch: TraceBatch) -> list[TraceText]:
    """Return the lines of states; see :class:`LogEngine`."""
    return [TraceText(f"[[], {trace}]") for trace in batch.texts]


def _read_trace(task: Any, text: str) -> TraceText:
    try:
        written = json.loads(text)
        if not (isinstance(written, list) and len(written) == 2 and isinstance(written[1], list)):
            raise WorkError("the state is not a pair of stages and steps")
        state = traces.replay(task, json.dumps(written[1]))
        return TraceText(traces.dump(task, state), hash_of(state))
    except WorkError as error:
        return TraceText(problem=str(error))
    except Exception as error:  # any error of TVM on foreign steps is a result
        return TraceText(problem=f"the trace cannot be replayed: {summary(error, last=True)}")
