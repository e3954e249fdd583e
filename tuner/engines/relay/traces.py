"""Traces as the transform steps of a state in Ansor's logs, and lines of those logs.

A line of such a log (v0.6) is ``{"i": [[workload key, target, hardware, host, layout rewrite,
inputs], [[], steps]], "r": [[costs], error, all costs, time], "v": "v0.6"}``. A trace is its
``steps`` alone, so that a line can be made of a task and a trace, and the other way round.
"""

import json
from collections.abc import Sequence
from typing import Any

import tvm
from tvm.auto_scheduler import MeasureInput, MeasureResult, SearchTask
from tvm.auto_scheduler.loop_state import State
from tvm.auto_scheduler.measure_record import dump_record_to_string, load_record_from_string

from tuner.errors import WorkError, summary


def dump(task: SearchTask, state: Any) -> str:
    """Serialise the transform steps of a state."""
    return _dumped(json.loads(record_line(task, state, [0.0]))["i"][1][1])


def replay(task: SearchTask, trace: str) -> State:
    """Rebuild a state, with the extents of all its loops.

    Raises:
        WorkError: If the trace does not belong to this workload or is damaged.
    """
    try:
        inputs, _ = load_record_from_string(line_of(task, trace, [0.0]))
        return task.compute_dag.infer_bound_from_state(inputs.state)
    except (ValueError, TypeError, KeyError, IndexError, tvm.TVMError) as error:
        raise WorkError(f"the trace cannot be replayed: {summary(error, last=True)}") from error


def record_line(task: SearchTask, state: Any, run_secs: Sequence[float]) -> str:
    """Return the line of an Ansor log for a measured state."""
    state = getattr(state, "state_object", state)
    result = MeasureResult(list(run_secs), 0, "", sum(run_secs), 0)
    return str(dump_record_to_string(MeasureInput(task, state), result))


def line_of(task: SearchTask, trace: str, run_secs: Sequence[float]) -> str:
    """Return the line of an Ansor log for a trace, without replaying it."""
    written = json.loads(record_line(task, task.compute_dag.init_state, [0.0]))
    written["i"][1][1] = json.loads(trace)
    written["r"][0] = list(run_secs)
    return _dumped(written)


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
