"""Records of other machines' GPUs, for a build where there is none.

The target ``cuda:sm_90`` on a machine without a GPU is any GPU of that architecture. Its own tasks
have no records, because nothing can be measured here; those of the GPUs that a pack or another
machine of the same database measured are for the same code.

Records come with the package as well: kernels that the project measured on a GPU. They are stored
as records of that GPU when a network first has one of their workloads, so that a tuner on another
GPU measures them before they count there.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from typing import Any

from sqlalchemy.orm import Session

from records import bests
from records.bests import BestTrace
from records.logs import imported, measure_log, other_targets
from tuner.context import Context
from tuner.engines.base import TargetInfo

# Only the fingerprint of a GPU that is there has it.
_PRESENT = "capability"
_VERSIONS = ("tvm", "llvm")

_FILE = resources.files("tuner.compile") / "shipped" / "nvidia-h200.jsonl.gz"


def read_log() -> list[str]:
    """Return the lines of the log, in the tuner's own format."""
    return gzip.decompress(_FILE.read_bytes()).decode().splitlines(keepends=True)


def import_shipped(context: Context, target: TargetInfo, workloads: Collection[str]) -> None:
    """Store the shipped records if they are of the target's architecture and of a workload.

    The setting ``shipped_records`` leaves them out.

    Args:
        context: Settings and database.
        target: Target of a build.
        workloads: Hashes of its workloads.
    """
    if target.kind != "cuda" or not context.settings.shipped_records:
        return
    lines = read_log()
    rows = [json.loads(line) for line in lines[1:]]
    (gpu,) = (row for row in rows if row["kind"] == "target")
    known = {row["hash"] for row in rows if row["kind"] == "workload"}
    if known.isdisjoint(workloads) or not _is_for(gpu["spec"], gpu["device"], target):
        return
    with context.readers() as session:
        if imported.find_target(session, gpu["spec"], gpu["device"]) is not None:
            return
    with context.sessions.begin() as session:
        measure_log.import_(session, lines, trusted=True)


def best_records(
    session: Session, target: TargetInfo, task_ids: Sequence[int]
) -> dict[int, BestTrace]:
    """Return records for tasks of a GPU that is not there, by task; none for other targets.

    All are of one GPU, so that their latencies can be added: the one with records of most of the
    tasks; ties go to the newest.
    """
    if target.kind != "cuda" or _PRESENT in target.device:
        return {}
    lenders = [
        row.id
        for row in other_targets.all_targets(session)
        if _PRESENT in row.device
        and not imported.is_logged(row)
        and is_same_code(row.spec, row.device, target)
    ]
    workloads = other_targets.workload_ids(session, task_ids)
    by_target: dict[int, list[other_targets.BestOnTarget]] = defaultdict(list)
    for best in other_targets.bests_of_targets(session, lenders, set(workloads.values())):
        by_target[best.target_id].append(best)
    if not by_target:
        return {}
    chosen = by_target[max(by_target, key=lambda each: (len(by_target[each]), each))]
    records = bests.best_records(session, [best.task_id for best in chosen])
    by_workload = {best.workload_id: records[best.task_id] for best in chosen}
    return {
        task_id: by_workload[workload_id]
        for task_id, workload_id in workloads.items()
        if workload_id in by_workload
    }


def is_same_code(spec: str, device: Mapping[str, Any], target: TargetInfo) -> bool:
    """Return whether a target's text, and a device's compilers, are those of a target."""
    return spec == target.spec and _is_for(spec, device, target)


def _is_for(spec: str, device: Mapping[str, Any], target: TargetInfo) -> bool:
    """Return whether a target runs the code of a target's text; a GPU that is there has limits."""
    arch, own = (json.loads(text).get("arch") for text in (spec, target.spec))
    return bool(arch == own) and all(
        device.get(name) == target.device.get(name) for name in _VERSIONS
    )
