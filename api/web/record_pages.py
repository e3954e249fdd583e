"""The records browser: best records by name or hash, records by page, and one record whole."""

import json
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import select

from api.dependencies import ReaderDep
from api.schemas import Id, OptionalId
from api.web import access
from api.web.record_queries import RecordFilter, find_records, find_tasks, task_of
from api.web.rendering import render
from api.web.sorting import query
from records.errors import NoSuchRow
from records.models import MeasureRecord, Pick, Target

router = APIRouter(include_in_schema=False)

_MOST_TRACE = 200_000


@dataclass(frozen=True)
class Samples:
    """Times of one measurement, seconds, and where each lies on a scale from 0 to 100."""

    title: str
    secs: tuple[float, ...]
    places: tuple[float, ...]


@router.get("/records")
def read_records(  # noqa: PLR0913, PLR0917  a parameter for each field of the form
    request: Request,
    session: ReaderDep,
    _subject: access.Reader,
    q: str = "",
    target: str = "",
    task: OptionalId = None,
    failed: str = "",
    cursor: str = "",
) -> HTMLResponse:
    """Look best records up, and browse all others."""
    targets = list(session.scalars(select(Target).order_by(Target.id).limit(200)))
    target_id = int(target) if target.isascii() and target.isdigit() and len(target) < 9 else None
    wanted = RecordFilter(task, bool(failed), cursor)
    chosen = None if task is None else task_of(session, task)
    if task is not None and chosen is None:
        raise NoSuchRow(f"no task {task}")
    found = find_records(session, wanted)
    kept = [("q", q), ("target", target), ("task", task), ("failed", failed)]
    return render(
        request,
        "records.html",
        q=q,
        targets=targets,
        target_id=target_id,
        tasks=find_tasks(session, q, target_id) if q or target_id is not None else None,
        chosen=chosen,
        failed=bool(failed),
        records=found.rows,
        first_page="/records" + query(kept) if cursor else None,
        next_page="/records" + query([*kept, ("cursor", found.after)]) if found.after else None,
        all_link="/records" + query([*kept[:3]]),
        failed_link="/records" + query([*kept[:3], ("failed", "1")]),
    )


@router.get("/records/{record_id}")
def read_record(
    request: Request, session: ReaderDep, _subject: access.Reader, record_id: Id
) -> HTMLResponse:
    """Show a record with its samples and its trace."""
    record = session.get(MeasureRecord, record_id)
    if record is None:
        raise NoSuchRow(f"no measure record {record_id}")
    task = task_of(session, record.task_id)
    pick = session.get(Pick, record.pick_id) if record.pick_id is not None else None
    return render(
        request,
        "record.html",
        record=record,
        task=task,
        pick=pick,
        is_best=task is not None and task.record_id == record.id,
        gflops=task.flop / record.latency / 1e9 if record.latency else None,
        samples=_samples(record),
        trace=_pretty(record.trace),
        cut=len(record.trace) > _MOST_TRACE,
    )


def _samples(record: MeasureRecord) -> list[Samples]:
    given = [("Samples", record.run_secs), ("Samples of its final", record.confirmed_secs)]
    shown = [(title, tuple(secs)) for title, secs in given if secs]
    if not shown:
        return []
    least = min(min(secs) for _, secs in shown)
    span = max(max(secs) for _, secs in shown) - least
    return [
        Samples(title, secs, tuple(2 + 96 * (each - least) / span if span else 50 for each in secs))
        for title, secs in shown
    ]


def _pretty(trace: str) -> str:
    shown: Any = trace
    if len(trace) <= _MOST_TRACE:
        try:
            shown = json.dumps(json.loads(trace), indent=1, ensure_ascii=False)
        except ValueError:
            shown = trace
    return str(shown)[:_MOST_TRACE]
