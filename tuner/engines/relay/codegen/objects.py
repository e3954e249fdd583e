"""Records of single subgraphs as cached objects, for the build of any network.

Relay compiles a network as a whole, for passes over the graph lay out its constants as the kernels
read them. An object therefore holds no code, but the record that the build applies, as a line of an
Ansor log; it is replayed here to check that it applies.
"""

import time
from pathlib import Path

from tuner.engines.base import ObjectRequest, ObjectResult
from tuner.engines.relay import traces, workloads

RECORD = "record.json"


def compile_subgraph(request: ObjectRequest) -> ObjectResult:
    """Store the record of a subgraph; see :class:`Engine`. TVM schedules fallbacks."""
    started = time.perf_counter()
    task = workloads.make_task(request.ir, request.target)
    line = ""
    if request.trace:
        traces.replay(task, request.trace)
        line = traces.line_of(task, request.trace, [0.0])
    (Path(request.out) / RECORD).write_text(line)
    return ObjectResult({"key": str(task.workload_key)}, time.perf_counter() - started)
