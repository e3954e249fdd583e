"""Records and tasks to browse, without reading a table of ten million rows to its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, and_, or_, select
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import BestRecord, MeasureRecord, Target, Task, Workload

_MAX_TARGETS = 200
_MAX_CURSOR_DIGITS = 18


@dataclass(frozen=True)
class RecordFilter:
    """The records to show.

    Attributes:
        task: Number of the task; None for all tasks.
        failed: True for failures only.
        cursor: Cursor of the page; empty for the first.
    """

    task: int | None = None
    failed: bool = False
    cursor: str = ""


@dataclass(frozen=True)
class RecordPage:
    """Records, each with the name of its workload, and the cursor of the next page."""

    rows: Sequence[tuple[MeasureRecord, str]]
    next: str | None


def browse_records(session: Session, chosen: RecordFilter, limit: int = 50) -> RecordPage:
    """Return a page of records: of a task the fastest first, of all tasks the newest first.

    Both are orders that an index has. Failures of a task are sorted by age as well.
    """
    if chosen.task is not None and not chosen.failed:
        stmt = _records().where(
            MeasureRecord.task_id == chosen.task, MeasureRecord.latency.is_not(None)
        )
        number = _number(chosen.cursor)
        last = None if number is None else session.get(MeasureRecord, number)
        if last is not None and last.latency is not None:
            stmt = stmt.where(
                or_(
                    MeasureRecord.latency > last.latency,
                    and_(MeasureRecord.latency == last.latency, MeasureRecord.id > last.id),
                )
            )
        return _page(session, stmt.order_by(MeasureRecord.latency, MeasureRecord.id), limit)
    return _newest(session, chosen, limit)


def find_tasks(session: Session, text: str, target_id: int | None, limit: int = 50) -> list[Any]:
    """Return tasks whose workload's name contains a text or whose hash starts with it.

    Rows are as :func:`find_task` returns them.
    """
    stmt = _tasks().order_by(Task.id.desc()).limit(limit)
    if text:
        starts = Workload.hash.startswith(text.lower(), autoescape=True)
        stmt = stmt.where(or_(starts, Workload.name.icontains(text, autoescape=True)))
    if target_id is not None:
        stmt = stmt.where(Task.target_id == target_id)
    return list(session.execute(stmt))


def find_task(session: Session, task_id: int) -> Any:
    """Return a task as a row of ``_tasks``; ``latency`` is None while no record is verified.

    Raises:
        NoSuchRow: If the task does not exist.
    """
    task = session.execute(_tasks().where(Task.id == task_id)).one_or_none()
    if task is None:
        raise NoSuchRow(f"no task {task_id}")
    return task


def list_targets(session: Session) -> list[Target]:
    """Return the first targets, as a form offers them."""
    return list(session.scalars(select(Target).order_by(Target.id).limit(_MAX_TARGETS)))


def _tasks() -> Select[Any]:
    return (
        select(
            Task.id.label("task_id"),
            Workload.hash,
            Workload.name,
            Workload.flop,
            Workload.engine,
            Task.target_id,
            Target.spec,
            Target.device,
            BestRecord.record_id,
            BestRecord.latency,
            BestRecord.confirmed,
        )
        .join(Workload, Workload.id == Task.workload_id)
        .join(Target, Target.id == Task.target_id)
        .outerjoin(BestRecord, BestRecord.task_id == Task.id)
    )


def _newest(session: Session, chosen: RecordFilter, limit: int) -> RecordPage:
    stmt = _records().order_by(MeasureRecord.id.desc())
    before = _number(chosen.cursor)
    if before is not None:
        stmt = stmt.where(MeasureRecord.id < before)
    if chosen.task is not None:
        stmt = stmt.where(MeasureRecord.task_id == chosen.task, MeasureRecord.latency.is_(None))
    elif chosen.failed:
        stmt = stmt.where(MeasureRecord.error_kind.is_not(None))
    return _page(session, stmt, limit)


def _records() -> Select[MeasureRecord, str]:
    return (
        select(MeasureRecord, Workload.name)
        .join(Task, Task.id == MeasureRecord.task_id)
        .join(Workload, Workload.id == Task.workload_id)
    )


def _page(session: Session, stmt: Select[MeasureRecord, str], limit: int) -> RecordPage:
    rows = [(row[0], row[1]) for row in session.execute(stmt.limit(limit + 1))]
    shown = rows[:limit]
    return RecordPage(shown, str(shown[-1][0].id) if len(rows) > limit else None)


def _number(cursor: str) -> int | None:
    is_number = cursor.isascii() and cursor.isdigit() and len(cursor) <= _MAX_CURSOR_DIGITS
    return int(cursor) if is_number else None
