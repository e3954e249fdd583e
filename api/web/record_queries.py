"""Find records and tasks to browse, without reading a table of ten million rows to its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.orm import Session

from records.models import BestRecord, MeasureRecord, Target, Task, Workload

# How many records a page of failures looks through before it asks the reader to go on.
_WINDOW = 50_000


@dataclass(frozen=True)
class RecordFilter:
    """Which records to show.

    Attributes:
        task: Only those of a task.
        failed: Only those that failed.
        cursor: Where the page before ended.
    """

    task: int | None = None
    failed: bool = False
    cursor: str = ""


@dataclass(frozen=True)
class Found:
    """Records of a page, each with its workload's name, and the cursor of the next page."""

    rows: Sequence[tuple[MeasureRecord, str]]
    after: str | None


def find_records(session: Session, wanted: RecordFilter, limit: int = 50) -> Found:
    """Return a page of records: of a task the fastest first, of all tasks the newest first.

    Both are orders that an index has. Failures of a task come the newest first.
    """
    if wanted.task is not None and not wanted.failed:
        return _fastest(session, wanted.task, wanted.cursor, limit)
    return _newest(session, wanted, limit)


def find_tasks(session: Session, text: str, target_id: int | None, limit: int = 50) -> list[Any]:
    """Return tasks whose workload's name holds a text or whose hash starts with it.

    Each row has ``task_id, hash, name, flop, target_id, device, record_id, latency, confirmed``;
    the last three are None where nothing was verified.
    """
    wanted = (
        select(
            Task.id.label("task_id"),
            Workload.hash,
            Workload.name,
            Workload.flop,
            Task.target_id,
            Target.device,
            BestRecord.record_id,
            BestRecord.latency,
            BestRecord.confirmed,
        )
        .join(Workload, Workload.id == Task.workload_id)
        .join(Target, Target.id == Task.target_id)
        .outerjoin(BestRecord, BestRecord.task_id == Task.id)
        .order_by(Task.id.desc())
        .limit(limit)
    )
    if text:
        starts = Workload.hash.startswith(text.lower(), autoescape=True)
        wanted = wanted.where(or_(starts, Workload.name.icontains(text, autoescape=True)))
    if target_id is not None:
        wanted = wanted.where(Task.target_id == target_id)
    return list(session.execute(wanted))


def task_of(session: Session, task_id: int) -> Any:
    """Return the row of ``find_tasks`` for one task, or None."""
    return session.execute(
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
        .where(Task.id == task_id)
    ).one_or_none()


def _fastest(session: Session, task: int, cursor: str, limit: int) -> Found:
    base = _named(select(MeasureRecord, Workload.name)).where(MeasureRecord.task_id == task)
    last = _record(session, cursor)
    wanted = base.where(MeasureRecord.latency.is_not(None))
    if last is not None and last.latency is not None:
        wanted = wanted.where(
            or_(
                MeasureRecord.latency > last.latency,
                and_(MeasureRecord.latency == last.latency, MeasureRecord.id > last.id),
            )
        )
    order = (MeasureRecord.latency, MeasureRecord.id)
    return _page(session, wanted.order_by(*order), limit)


def _newest(session: Session, wanted: RecordFilter, limit: int) -> Found:
    query = _named(select(MeasureRecord, Workload.name)).order_by(MeasureRecord.id.desc())
    newest = session.scalar(select(func.max(MeasureRecord.id))) or 0
    cursor = wanted.cursor
    before = int(cursor) if cursor.isascii() and cursor.isdigit() and len(cursor) < 19 else None
    top = newest + 1 if before is None else before
    query = query.where(MeasureRecord.id < top)
    if wanted.task is not None:
        query = query.where(MeasureRecord.task_id == wanted.task, MeasureRecord.latency.is_(None))
        return _page(session, query, limit)
    if not wanted.failed:
        return _page(session, query, limit)
    floor = top - _WINDOW
    query = query.where(MeasureRecord.error_kind.is_not(None), MeasureRecord.id >= floor)
    found = _page(session, query, limit)
    if found.after is None and floor > 1:
        return Found(found.rows, str(floor))
    return found


def _page(session: Session, query: Select[Any], limit: int) -> Found:
    rows = [(row[0], row[1]) for row in session.execute(query.limit(limit + 1))]
    shown = rows[:limit]
    return Found(shown, str(shown[-1][0].id) if len(rows) > limit else None)


def _named(query: Select[Any, Any]) -> Select[Any, Any]:
    return query.join(Task, Task.id == MeasureRecord.task_id).join(
        Workload, Workload.id == Task.workload_id
    )


def _record(session: Session, cursor: str) -> MeasureRecord | None:
    is_id = cursor.isascii() and cursor.isdigit() and len(cursor) < 19
    return session.get(MeasureRecord, int(cursor)) if is_id else None
