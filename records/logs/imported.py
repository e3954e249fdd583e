"""Records from logs: those of other tools, and those that another tuner claims to have measured.

They belong to separate targets, whose devices name the tool that wrote the log or are marked as
claimed, so that they are never mistaken for measurements of this machine; see
``tuner records verify``.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from records import measure_records
from records.logs import other_targets
from records.models import Target, now
from records.storage.text import storable
from records.targets import ensure_target, fingerprint
from records.tasks import ensure_task

# Worker name of the records that come from a log.
WORKER = "log"
_MARK = "log"
_CLAIM = "claimed"


@dataclass(frozen=True)
class LoggedTrial:
    """A measurement from a log: ``run_secs`` or ``error_kind`` is given, never both."""

    trace: str
    module_hash: str
    run_secs: tuple[float, ...] | None
    error_kind: str | None
    error_text: str
    created: datetime | None


def target_of(session: Session, spec: str, tool: str) -> Target:
    """Return the target that holds the records of a tool's logs."""
    return ensure_target(session, spec, {"name": f"unnamed, by a log of {tool}", _MARK: tool})


def find_target(session: Session, spec: str, device: dict[str, Any]) -> int | None:
    """Return the target of a device, or None if the device never measured."""
    by_fingerprint = Target.fingerprint == fingerprint(spec, device)
    return session.scalars(select(Target.id).where(by_fingerprint)).one_or_none()


def claimed_device(device: dict[str, Any]) -> dict[str, Any]:
    """Return the device that holds the records which a log claims of a device."""
    return {**device, _CLAIM: True}


def is_claimed(target: Target) -> bool:
    """Return whether a target holds the claims of another tuner."""
    return _CLAIM in target.device


def is_logged(target: Target) -> bool:
    """Return whether a target holds records from logs."""
    return _MARK in target.device or is_claimed(target)


def add(
    session: Session,
    workload_id: int,
    target_id: int,
    local_target_id: int | None,
    new: Sequence[LoggedTrial],
) -> int:
    """Store measurements of a workload that are not in the database yet.

    Args:
        target_id: Target that holds records from logs.
        local_target_id: Target of this machine; its own records are not stored again.

    Returns:
        Number of records added.
    """
    task_id = ensure_task(session, workload_id, target_id).id
    rows = [_row(task_id, trial) for trial in new]
    hashes = {row["trace_hash"] for row in rows}
    local_tasks = (
        ()
        if local_target_id is None
        else other_targets.tasks_of_target(session, local_target_id, [workload_id]).values()
    )
    known_hashes = {
        trace_hash
        for task in local_tasks
        for trace_hash in other_targets.known_traces(session, task, hashes)
    }
    new_rows = [row for row in rows if row["trace_hash"] not in known_hashes]
    return sum(stored is not None for stored in measure_records.add_rows(session, new_rows))


def _row(task_id: int, new: LoggedTrial) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "pick_id": None,
        "trace": new.trace,
        "trace_hash": measure_records.trace_hash(new.trace),
        "module_hash": new.module_hash or None,
        "run_secs": None if new.run_secs is None else list(new.run_secs),
        "latency": None if new.run_secs is None else statistics.median(new.run_secs),
        "error_kind": new.error_kind,
        "error_text": storable(new.error_text) or None,
        "verified": False,
        "max_error": None,
        "confirmed_secs": None,
        "conditions": None,
        "clock_factor": None,
        "worker": WORKER,
        "created": new.created or now(),
        "features": None,
    }
