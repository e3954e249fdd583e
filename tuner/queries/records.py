"""Read what people are shown of measurements."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import BindParameter, Select, bindparam, select
from sqlalchemy.orm import Session

from records.models import BestRecord, MeasureRecord, Target, Task, Workload
from tuner.schemas import BestView, RecordView

# Made once: to make them takes longer than the database takes to answer. The outer join keeps
# SQLite from beginning with the targets, of which there are few, and walking their tasks.
_BESTS = (
    select(
        BestRecord.record_id.label("record"),
        Task.id.label("task"),
        Workload.hash.label("workload"),
        Workload.name,
        Workload.flop,
        Task.target_id,
        Target.spec.label("target"),
        Target.device,
        BestRecord.latency.label("latency_secs"),
        BestRecord.confirmed,
        MeasureRecord.created,
    )
    .join(MeasureRecord, MeasureRecord.id == BestRecord.record_id)
    .join(Task, Task.id == BestRecord.task_id)
    .join(Workload, Workload.id == Task.workload_id)
    .outerjoin(Target, Target.id == Task.target_id)
)


def _named(workload: str | BindParameter[str]) -> Select[int]:
    """Return the numbers of workloads with a hash, one an engine.

    With the hash as one more join, SQLite walks all tasks of a target.
    """
    return select(Workload.id).where(Workload.hash == workload)


_OF_WORKLOAD = _BESTS.where(Task.workload_id.in_(_named(bindparam("workload"))))
_OF_TASK = _OF_WORKLOAD.where(Task.target_id == bindparam("target"))
_RECORDS = (
    select(
        MeasureRecord.id.label("record"),
        Task.id.label("task"),
        Workload.hash.label("workload"),
        Workload.name,
        Task.target_id,
        Target.spec.label("target"),
        Target.device,
        MeasureRecord.trace_hash,
        MeasureRecord.latency.label("latency_secs"),
        MeasureRecord.run_secs,
        MeasureRecord.confirmed_secs,
        MeasureRecord.error_kind,
        MeasureRecord.error_text,
        MeasureRecord.verified,
        MeasureRecord.max_error,
        MeasureRecord.conditions,
        MeasureRecord.worker,
        MeasureRecord.created,
    )
    .join(Task, Task.id == MeasureRecord.task_id)
    .join(Workload, Workload.id == Task.workload_id)
    .outerjoin(Target, Target.id == Task.target_id)
    .order_by(MeasureRecord.id.desc())
)


def read_bests(
    session: Session,
    *,
    workload: str | None = None,
    target_id: int | None = None,
    task_ids: list[int] | None = None,
    after: int | None = None,
    limit: int | None = None,
) -> list[BestView]:
    """Return the best record of every task, in the order of the tasks.

    That of one workload takes a few look-ups by unique keys, whatever the number of records.

    Args:
        session: The transaction.
        workload: Only tasks of the workload with this hash.
        target_id: Only tasks on this target.
        task_ids: Only these tasks.
        after: Only tasks with a higher number.
        limit: At most so many.
    """
    if workload is not None and task_ids is None and after is None:
        # The look-up that is made most: its statements are made once, too.
        statement = _OF_WORKLOAD if target_id is None else _OF_TASK
        keys = {"workload": workload, "target": target_id}
        found = sorted(_rows(session, statement, keys), key=lambda row: row["task"])
        return [_best(row) for row in found[:limit]]
    wanted = _BESTS
    if workload is not None:
        wanted = wanted.where(Task.workload_id.in_(_named(workload)))
    else:
        wanted = wanted.order_by(Task.id).limit(limit)
    if target_id is not None:
        wanted = wanted.where(Task.target_id == target_id)
    if task_ids is not None:
        wanted = wanted.where(Task.id.in_(task_ids))
    if after is not None:
        wanted = wanted.where(Task.id > after)
    # A workload has a task a target: sorting those here keeps the database from walking all
    # tasks in order.
    found = sorted(_rows(session, wanted), key=lambda row: row["task"])
    return [_best(row) for row in found[:limit]]


def read_records(
    session: Session,
    *,
    workload: str | None = None,
    task: int | None = None,
    failed: bool = False,
    before: int | None = None,
    limit: int = 50,
) -> list[RecordView]:
    """Return measure records, the newest first.

    Args:
        session: The transaction.
        workload: Only those of the workload with this hash.
        task: Only those of this task.
        failed: Only those that failed.
        before: Only those with a lower number.
        limit: At most so many.
    """
    wanted = _RECORDS.limit(limit)
    if workload is not None:
        wanted = wanted.where(Workload.hash == workload)
    if task is not None:
        wanted = wanted.where(Task.id == task)
    if failed:
        wanted = wanted.where(MeasureRecord.error_kind.is_not(None))
    if before is not None:
        wanted = wanted.where(MeasureRecord.id < before)
    return [RecordView(**row) for row in _rows(session, wanted)]


def _best(row: dict[str, Any]) -> BestView:
    flop = row.pop("flop")
    latency = row["latency_secs"]
    return BestView(**row, gflops=flop / latency / 1e9 if latency else 0.0)


def _rows(
    session: Session, wanted: Select[*tuple[Any, ...]], keys: dict[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield rows as dictionaries, each with the name of its device."""
    for found in session.execute(wanted, keys).mappings():
        row: dict[str, Any] = {str(name): value for name, value in found.items()}
        yield {**row, "device": row["device"].get("name")}
