"""An engine that writes texts as they are, and cannot write a workload that it does not know."""

import json

from tuner.engines.log_base import TraceBatch, TraceText, WorkloadText
from tuner.errors import WorkError

NAME = "tests.tuner.tuning_logs.writing"
UNKNOWN = b"\x00ir-unknown"


def write_target(spec: str) -> str:
    """Write a target as a line of Ansor has it."""
    return json.dumps([spec, [2], ""])


def write_workload(ir: bytes) -> list[WorkloadText]:
    """Name a workload by what it is."""
    if ir == UNKNOWN:
        raise WorkError("its IR is of another time")
    return [WorkloadText(ir.decode(), ir, "[]")]


def write_traces(batch: TraceBatch) -> list[TraceText]:
    """Write traces as they are."""
    return [TraceText(text) for text in batch.texts]
