"""Records that come with the package: kernels that the project measured on a GPU.

They are stored as records of that GPU when a network first has one of their workloads. So a build
for an absent GPU uses them, and a tuner on another GPU measures them before they count there.
"""

import gzip
import json
from collections.abc import Collection
from importlib import resources

from records.logs import imported, measure_log
from tuner.compile import absent_gpus
from tuner.context import Context
from tuner.engines.base import TargetInfo

_FILE = resources.files("tuner.compile") / "shipped" / "nvidia-h200.jsonl.gz"


def read_log() -> list[str]:
    """Return the lines of the log, in the tuner's own format."""
    return gzip.decompress(_FILE.read_bytes()).decode().splitlines(keepends=True)


def import_shipped(context: Context, target: TargetInfo, workloads: Collection[str]) -> None:
    """Store the shipped records if they are of the target's code and of one of the workloads.

    Args:
        context: Settings and database.
        target: Target of a build.
        workloads: Hashes of its workloads.
    """
    if target.kind != "cuda":
        return
    lines = read_log()
    rows = [json.loads(line) for line in lines[1:]]
    (gpu,) = (row for row in rows if row["kind"] == "target")
    known = {row["hash"] for row in rows if row["kind"] == "workload"}
    if known.isdisjoint(workloads) or not absent_gpus.is_same_code(
        gpu["spec"], gpu["device"], target
    ):
        return
    with context.readers() as session:
        if imported.find_target(session, gpu["spec"], gpu["device"]) is not None:
            return
    with context.sessions.begin() as session:
        measure_log.import_(session, lines, trusted=True)
