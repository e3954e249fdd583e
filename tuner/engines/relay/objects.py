"""Keep how one subgraph is scheduled, for the build of any network.

Relay compiles a network as a whole: its constants are laid out as the kernels read them, by passes
over the graph. So that an object holds no code, but the record that the build applies, as the line
of an Ansor log; replaying it here finds out whether it can be.
"""

import time
from pathlib import Path

from tuner.engines.base import ObjectRequest, ObjectResult
from tuner.engines.relay import traces, workloads

RECORD = "record.json"


def compile_subgraph(request: ObjectRequest) -> ObjectResult:
    """Keep a record; see :class:`Engine`. A fallback has none, and is scheduled by TVM."""
    started = time.perf_counter()
    task = workloads.make_task(request.ir, request.target)
    line = ""
    if request.trace:
        traces.replay(task, request.trace)
        line = traces.line_of(task, request.trace, [0.0])
    (Path(request.out) / RECORD).write_text(line)
    return ObjectResult({"key": str(task.workload_key)}, time.perf_counter() - started)
