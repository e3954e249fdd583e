"""The records browser: best records by name or hash, records by page, and single records."""

from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from api.dependencies import ReaderDep, StateDep
from api.documents.schemas import Id, OptionalId
from api.routes import records as routes
from api.web import access
from api.web.rendering import render
from api.web.sorting import query
from tuner.formatting import trace_lines
from tuner.queries import record_browser
from tuner.queries import records as record_queries
from tuner.queries.record_browser import RecordFilter
from tuner.schemas import RecordDetails

router = APIRouter(include_in_schema=False)

_MAX_TRACE_CHARS = 200_000
_MAX_TARGET_DIGITS = 8


@dataclass(frozen=True)
class Samples:
    """Times of one measurement, seconds.

    Attributes:
        positions: Place of each time on a scale from 0 to 100.
        ends: Times at the ends of the scale, which all measurements share.
    """

    title: str
    secs: tuple[float, ...]
    positions: tuple[float, ...]
    ends: tuple[float, float]


@router.get("/records")
def read_records(  # noqa: PLR0913, PLR0917  a parameter for each field of the form
    request: Request,
    _subject: access.Reader,
    session: ReaderDep,
    q: str = "",
    target: str = "",
    task: OptionalId = None,
    failed: str = "",
    cursor: str = "",
) -> HTMLResponse:
    """Search best records, and browse all records."""
    is_id = target.isascii() and target.isdigit() and len(target) <= _MAX_TARGET_DIGITS
    target_id = int(target) if is_id else None
    chosen = None if task is None else record_browser.find_task(session, task)
    page = record_browser.browse_records(session, RecordFilter(task, bool(failed), cursor))
    is_search = q or target_id is not None
    kept = [("q", q), ("target", target), ("task", task), ("failed", failed)]
    return render(
        request,
        "records.html",
        q=q,
        targets=record_browser.list_targets(session),
        target_id=target_id,
        tasks=record_browser.find_tasks(session, q, target_id) if is_search else None,
        chosen=chosen,
        failed=bool(failed),
        records=page.rows,
        first_page="/records" + query(kept) if cursor else None,
        next_page="/records" + query([*kept, ("cursor", page.next)]) if page.next else None,
        all_link="/records" + query([*kept[:3]]),
        failed_link="/records" + query([*kept[:3], ("failed", "1")]),
    )


@router.get("/records/{record_id}")
def read_record(
    request: Request, subject: access.Reader, session: ReaderDep, record_id: Id
) -> HTMLResponse:
    """Show a record with its samples and its trace."""
    record = record_queries.read_record(session, record_id, subject.viewer)
    code = record_queries.read_code(session, record_id).items
    return render(
        request,
        "record.html",
        record=record,
        samples=_samples(record),
        trace=trace_lines(record.trace),
        raw_trace=record.trace[:_MAX_TRACE_CHARS],
        cut=len(record.trace) > _MAX_TRACE_CHARS,
        code=code,
        waiting=[item.part for item in code if item.text is None and item.message is None],
        may_print=subject.allows("submit"),
        max_code_chars=_MAX_TRACE_CHARS,
    )


@router.post("/records/{record_id}/code")
async def print_code(state: StateDep, subject: access.Submitter, record_id: Id) -> Response:
    """Have a worker print the code of a record, and show the page of the record."""
    await state.writes.run(lambda session: routes.print_code(record_id, subject, session))
    return RedirectResponse(f"/records/{record_id}", 303)


def _samples(record: RecordDetails) -> list[Samples]:
    measurements = [("Samples", record.run_secs), ("Samples of the finals", record.confirmed_secs)]
    shown = [(title, tuple(secs)) for title, secs in measurements if secs]
    if not shown:
        return []
    low = min(min(secs) for _, secs in shown)
    high = max(max(secs) for _, secs in shown)
    # Equal times lie in the middle.
    margin = (high - low) / 48 or low or 1.0
    low, high = low - margin, high + margin
    return [
        Samples(title, secs, tuple(100 * (s - low) / (high - low) for s in secs), (low, high))
        for title, secs in shown
    ]
