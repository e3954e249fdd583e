"""Records out of logs of other tools: of a device that nobody named, compared with nothing.

They are kept under a target of their own, whose device says which tool wrote the log, so that none
of them is ever used as if it had been measured here; see ``tuner records verify``.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from records import measure_records, other_targets, record_insert
from records.models import Target, now
from records.targets import ensure_target, fingerprint
from records.tasks import ensure_task
from records.text import storable

# Who says that he measured what a log says.
WORKER = "log"
_MARK = "log"


@dataclass(frozen=True)
class Logged:
    """A measurement out of a log: ``run_secs`` or ``error_kind`` is given, never both."""

    trace: str
    module_hash: str
    run_secs: tuple[float, ...] | None
    error_kind: str | None
    error_text: str
    created: datetime | None


def target_of(session: Session, spec: str, tool: str) -> Target:
    """Return the target that the records of a tool's logs are kept under."""
    return ensure_target(session, spec, {"name": f"unnamed, by a log of {tool}", _MARK: tool})


def find_target(session: Session, spec: str, device: dict[str, Any]) -> int | None:
    """Return the target of a device that says who it is; None if it never measured."""
    named = Target.fingerprint == fingerprint(spec, device)
    return session.scalars(select(Target.id).where(named)).one_or_none()


def is_logged(target: Target) -> bool:
    """Return whether a target is one of logs."""
    return _MARK in target.device


def add(
    session: Session, workload_id: int, target_id: int, here: int | None, new: Sequence[Logged]
) -> int:
    """Store measurements of a workload, but for those that are known.

    Args:
        session: The transaction.
        workload_id: The workload.
        target_id: The target of logs.
        here: The target of this machine, whose own records are not stored again.
        new: The measurements.

    Returns:
        How many are new.
    """
    task_id = ensure_task(session, workload_id, target_id).id
    rows = [_row(task_id, each) for each in new]
    hashes = {row["trace_hash"] for row in rows}
    own = (
        () if here is None else other_targets.tasks_of_target(session, here, [workload_id]).values()
    )
    known = {each for task in own for each in other_targets.known_traces(session, task, hashes)}
    fresh = [row for row in rows if row["trace_hash"] not in known]
    return sum(stored is not None for stored in record_insert.store(session, fresh))


def _row(task_id: int, new: Logged) -> dict[str, Any]:
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
        "worker": WORKER,
        "created": new.created or now(),
        "features": None,
    }
