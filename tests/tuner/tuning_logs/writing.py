"""An engine that writes texts unchanged, and refuses an unknown workload."""

import json

from tuner.engines.log_base import TraceBatch, TraceText, WorkloadText
from tuner.errors import WorkError

NAME = "tests.tuner.tuning_logs.writing"
UNKNOWN = b"\x00ir-unknown"


def write_target(spec: str) -> str:
    """Write a target in the form of a line of Ansor."""
    return json.dumps([spec, [2], ""])


def write_workload(ir: bytes) -> list[WorkloadText]:
    """Return the key of a workload."""
    if ir == UNKNOWN:
        raise WorkError("its IR is of another time")
    return [WorkloadText(ir.decode(), ir, "[]")]


def write_traces(batch: TraceBatch) -> list[TraceText]:
    """Return traces unchanged."""
    return [TraceText(text) for text in batch.texts]
