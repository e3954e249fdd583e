"""Measure records and best records, as lists show them."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import BindParameter, Select, bindparam, func, select
from sqlalchemy.orm import Session

from records.bests import HEAD_CHARS
from records.errors import NoSuchRow
from records.logs.measure_log import ImportReport
from records.models import BestRecord, MeasureRecord, Pick, Target, Task, Workload
from records.service import kernel_codes
from records.service.owners.access import EVERYTHING, Viewer, ownership
from records.targets import device_name
from records.tasks import full_name
from scheduler import estimate
from tuner.engines.base import KERNEL_PARTS, origin_of, variant_of_origin
from tuner.schemas import BestView, CodePart, Imported, RecordCode, RecordDetails, RecordView

# Tasks whose numbers go into a statement, from which databases find their records by an index.
_MAX_LISTED_TASKS = 10_000
# Column of the beginning of a trace, which becomes the name of its variant.
_HEAD = func.substr(MeasureRecord.trace, 1, HEAD_CHARS).label("variant")
# Columns of best records and of others.
_COLUMNS = (
    *(Task.id.label("task"), Workload.hash.label("workload"), Workload.name),
    *(Task.target_id, Target.spec.label("target"), Target.device),
    *(MeasureRecord.created, MeasureRecord.origin, _HEAD),
)
# Built once: building them takes longer than the database takes to answer. The outer join keeps
# SQLite from starting with the targets, of which there are few, and walking all their tasks.
_BESTS = (
    select(
        BestRecord.record_id.label("record"),
        Workload.flop,
        BestRecord.latency.label("latency_secs"),
        BestRecord.confirmed,
        *_COLUMNS,
    )
    .join(MeasureRecord, MeasureRecord.id == BestRecord.record_id)
    .join(Task, Task.id == BestRecord.task_id)
    .join(Workload, Workload.id == Task.workload_id)
    .outerjoin(Target, Target.id == Task.target_id)
)


def _named(workload: str | BindParameter[str]) -> Select[int]:
    """Select the numbers of workloads with a hash, one for each engine.

    With the hash in one more join, SQLite would walk all tasks of a target.
    """
    return select(Workload.id).where(Workload.hash == workload)


_OF_WORKLOAD = _BESTS.where(Task.workload_id.in_(_named(bindparam("workload"))))
_OF_TASK = _OF_WORKLOAD.where(Task.target_id == bindparam("target"))
_RECORDS = (
    select(
        MeasureRecord.id.label("record"),
        MeasureRecord.trace_hash,
        MeasureRecord.latency.label("latency_secs"),
        MeasureRecord.run_secs,
        MeasureRecord.clock_factor,
        MeasureRecord.confirmed_secs,
        MeasureRecord.error_kind,
        MeasureRecord.error_text,
        MeasureRecord.verified,
        MeasureRecord.max_error,
        MeasureRecord.conditions,
        MeasureRecord.worker,
        *_COLUMNS,
    )
    .join(Task, Task.id == MeasureRecord.task_id)
    .join(Workload, Workload.id == Task.workload_id)
    .outerjoin(Target, Target.id == Task.target_id)
    .order_by(MeasureRecord.id.desc())
)

_DETAILS = (
    _RECORDS.add_columns(
        MeasureRecord.trace,
        MeasureRecord.module_hash,
        MeasureRecord.confirmed_factor,
        Workload.engine,
        Workload.flop,
        BestRecord.record_id.label("best"),
        Pick.job_id.label("job"),
        Pick.sequence.label("pick"),
    )
    .outerjoin(BestRecord, BestRecord.task_id == Task.id)
    .outerjoin(Pick, Pick.id == MeasureRecord.pick_id)
)


def read_bests(  # noqa: PLR0913  a keyword for each part of the query
    session: Session,
    *,
    workload: str | None = None,
    name: str | None = None,
    target_id: int | None = None,
    task_ids: list[int] | None = None,
    after: int | None = None,
    limit: int | None = None,
) -> list[BestView]:
    """Return the best record of every task, sorted by the number of the task.

    For one workload this takes a few look-ups by unique keys, whatever the number of records.

    Args:
        workload: Hash of the workload, or its beginning; None for all.
        name: Part of the workload's name, in any case; None for all.
        target_id: Number of the target; None for all.
        task_ids: Numbers of the tasks; None for all.
        after: Number of the last task of the previous page.
        limit: Maximum of records.
    """
    if workload is not None:
        workload = full_name(session, workload)
    if workload is not None and name is None and task_ids is None and after is None:
        # The most frequent look-up: its statements are built once.
        statement = _OF_WORKLOAD if target_id is None else _OF_TASK
        rows = _rows(session, statement, {"workload": workload, "target": target_id})
        return _bests(rows, limit)
    stmt = _BESTS
    if workload is not None:
        stmt = stmt.where(Task.workload_id.in_(_named(workload)))
    else:
        stmt = stmt.order_by(Task.id).limit(limit)
    if name is not None:
        stmt = stmt.where(Workload.name.icontains(name, autoescape=True))
    if target_id is not None:
        stmt = stmt.where(Task.target_id == target_id)
    if task_ids is not None:
        stmt = stmt.where(Task.id.in_(task_ids))
    if after is not None:
        stmt = stmt.where(Task.id > after)
    return _bests(_rows(session, stmt), limit)


def read_records(  # noqa: PLR0913  a keyword for each part of the query
    session: Session,
    *,
    workload: str | None = None,
    name: str | None = None,
    task: int | None = None,
    failed: bool = False,
    before: int | None = None,
    limit: int = 50,
) -> list[RecordView]:
    """Return measure records, the newest first.

    Args:
        workload: Hash of the workload, or its beginning; None for all.
        name: Part of the workload's name, in any case; None for all.
        task: Number of the task; None for all.
        failed: True for failures only.
        before: Number of the last record of the previous page.
        limit: Maximum of records.
    """
    # The numbers alone come from an index; the rows are then few.
    numbers = select(MeasureRecord.id).order_by(MeasureRecord.id.desc()).limit(limit)
    if (workload, name, task) != (None, None, None):
        numbers = numbers.where(MeasureRecord.task_id.in_(_tasks(session, workload, name, task)))
        if failed:
            # The same by the check of the table, and in an index with the task.
            numbers = numbers.where(MeasureRecord.latency.is_(None))
    if failed:
        numbers = numbers.where(MeasureRecord.error_kind.is_not(None))
    if before is not None:
        numbers = numbers.where(MeasureRecord.id < before)
    stmt = _RECORDS.where(MeasureRecord.id.in_(list(session.scalars(numbers))))
    return [RecordView(**row) for row in _rows(session, stmt)]


def read_code(session: Session, record_id: int) -> RecordCode:
    """Return the parts of a record's code that were asked for on a service."""
    rows = kernel_codes.parts_of(session, record_id)
    items = {row.part: CodePart(part=row.part, text=row.text, message=row.message) for row in rows}
    ordered = [items[part] for part in KERNEL_PARTS if part in items]
    return RecordCode(record=record_id, items=ordered)


def read_record(session: Session, record_id: int, viewer: Viewer = EVERYTHING) -> RecordDetails:
    """Return a record; its job only if a viewer may see that.

    Raises:
        NoSuchRow: If the record does not exist.
    """
    row = next(_rows(session, _DETAILS.where(MeasureRecord.id == record_id)), None)
    if row is None:
        raise NoSuchRow(f"no measure record {record_id}")
    best, flop, job = row.pop("best"), row.pop("flop"), row["job"]
    factor, samples = row.pop("confirmed_factor") or 1.0, row["confirmed_secs"]
    final_secs = statistics.median(samples) * factor if samples else None
    if job is not None and not viewer.sees(ownership(session, job)):
        row |= {"job": None, "pick": None}
    return RecordDetails(
        **row,
        gflops=estimate.gflops(flop, final_secs or row["latency_secs"]),
        final_secs=final_secs,
        is_best=best == record_id,
        is_imported=job is None,
    )


def _tasks(
    session: Session, workload: str | None, name: str | None, task: int | None
) -> Sequence[int] | Select[int]:
    """Return the numbers of tasks; of very many, the query that selects them."""
    stmt = select(Task.id)
    if workload is not None:
        stmt = stmt.where(Task.workload_id.in_(_named(full_name(session, workload))))
    if name is not None:
        named = select(Workload.id).where(Workload.name.icontains(name, autoescape=True))
        stmt = stmt.where(Task.workload_id.in_(named))
    if task is not None:
        stmt = stmt.where(Task.id == task)
    numbers = session.scalars(stmt.limit(_MAX_LISTED_TASKS + 1)).all()
    return numbers if len(numbers) <= _MAX_LISTED_TASKS else stmt


def _bests(rows: Iterator[dict[str, Any]], limit: int | None) -> list[BestView]:
    # A workload has one task on each target: sorting those here keeps the database from walking
    # all tasks in order.
    return [_best(row) for row in sorted(rows, key=lambda row: row["task"])[:limit]]


def _best(row: dict[str, Any]) -> BestView:
    flop = row.pop("flop")
    return BestView(**row, gflops=estimate.gflops(flop, row["latency_secs"]))


def _rows(
    session: Session, stmt: Select[*tuple[Any, ...]], keys: dict[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield rows as dictionaries, each with the name of its device."""
    for mapping in session.execute(stmt, keys).mappings():
        row: dict[str, Any] = {str(name): value for name, value in mapping.items()}
        origin = origin_of(row["variant"], row["origin"])
        named = {"origin": origin, "variant": variant_of_origin(origin)}
        yield {**row, "device": device_name(row["target"], row["device"]), **named}


def summarise_import(report: ImportReport) -> Imported:
    """Return what an import of records did."""
    return Imported(
        added=report.n_added,
        known=report.n_known,
        torn=report.n_bad,
        refused=report.n_refused,
        refusals=list(report.refusals),
    )
