"""Small rows for the tests of the records package."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from records import jobs, measure_records, networks, picks, targets, tasks
from records.models import ImportedRound, Pick

CPU = {"name": "Test CPU", "n_cores": 2, "versions": {"tvm": "0.27"}}


def workload(hashed: str = "w0", engine: str = "relax") -> tasks.NewWorkload:
    """Return a workload named by its hash."""
    return tasks.NewWorkload(
        hash=hashed,
        engine=engine,
        ir=b"\x00ir-" + hashed.encode(),
        flop=2e9,
        name=f"dense_{hashed}",
    )


def target(session: Session, core_count: int = 2) -> int:
    """Return the id of a CPU target."""
    return targets.ensure_target(session, '{"kind":"llvm"}', CPU | {"n_cores": core_count}).id


def task(session: Session, hashed: str = "w0", core_count: int = 2) -> int:
    """Return the id of a task."""
    workload_id = tasks.ensure_workload(session, workload(hashed)).id
    return tasks.ensure_task(session, workload_id, target(session, core_count)).id


def network(session: Session, sha256: str = "n0") -> int:
    """Return the id of a network."""
    inputs = {"x": {"shape": [1, 3, 224, 224], "dtype": "float32"}}
    return networks.ensure_network(session, sha256, f"net {sha256}", inputs).id


def job(session: Session, seed: int = 0, **changes: Any) -> int:
    """Return the id of a job on the CPU target."""
    fields: dict[str, Any] = {
        "network_id": network(session),
        "target_id": target(session),
        "objective": "f1",
        "seed": seed,
    }
    return jobs.open_job(session, jobs.NewJob(**(fields | changes))).id


def pick(
    session: Session, job_id: int, task_id: int, n_trials: int, terms: dict[str, Any] | None = None
) -> Pick:
    """Append a pick to a job."""
    return picks.add_picks(session, [picks.NewPick(job_id, task_id, n_trials, terms or {})])[0]


def count_by_task(session: Session, task_ids: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the trials and the failed trials of each task, from the stored totals."""
    counts = dict.fromkeys(task_ids, (0, 0))
    for model in (Pick, ImportedRound):
        rows = session.execute(
            select(model.task_id, func.sum(model.n_measured), func.sum(model.n_failed))
            .where(model.task_id.in_(task_ids))
            .group_by(model.task_id)
        )
        for task_id, n_trials, n_failed in rows:
            before = counts[task_id]
            counts[task_id] = (before[0] + n_trials, before[1] + n_failed)
    return counts


def timed(task_id: int, trace_hash: str, *secs: float, **changes: Any) -> measure_records.NewRecord:
    """Return a verified trial with samples."""
    fields: dict[str, Any] = {"verified": True, "max_error": 1e-6, "worker": "w1"} | changes
    return measure_records.NewRecord(
        task_id=task_id, trace=f'["{trace_hash}"]', trace_hash=trace_hash, run_secs=secs, **fields
    )


def failed(
    task_id: int, trace_hash: str, kind: str = "run_error", **changes: Any
) -> measure_records.NewRecord:
    """Return a failed trial."""
    fields: dict[str, Any] = {"error_text": "Segmentation fault", "worker": "w1"} | changes
    return measure_records.NewRecord(
        task_id=task_id, trace=f'["{trace_hash}"]', trace_hash=trace_hash, error_kind=kind, **fields
    )
