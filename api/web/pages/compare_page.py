"""The comparison of two jobs: their latencies, their progress, and the faster one by workload."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from api.dependencies import ReaderDep
from api.web import access, charts
from api.web.charts import Curve
from api.web.rendering import render
from api.web.sorting import Keys, read_sorting, sort_rows
from records.service.owners.access import check_visible
from tuner.queries import jobs as job_queries
from tuner.queries.comparison import compare_jobs
from tuner.queries.history import read_history

router = APIRouter(include_in_schema=False)

_N_CHOICES = 200
_MAX_ID_DIGITS = 9


COLUMNS: Keys = {
    "name": lambda row: row.name,
    "a": lambda row: row.a.latency_secs if row.a else None,
    "b": lambda row: row.b.latency_secs if row.b else None,
    "speedup": lambda row: row.speedup,
    "saved": lambda row: None if row.saved_secs is None else abs(row.saved_secs),
}


@router.get("/compare")
def show_comparison(
    request: Request,
    subject: access.Reader,
    session: ReaderDep,
    a: str = "",
    b: str = "",
    sort: str = "",
) -> HTMLResponse:
    """Show two jobs side by side, or the form that selects them."""
    values: dict[str, Any] = {
        "choices": job_queries.recent_jobs(session, _N_CHOICES, subject.viewer),
        "a": a,
        "b": b,
        "both": None,
    }
    if _is_number(a) and _is_number(b):
        for job_id in (int(a), int(b)):
            check_visible(session, subject.viewer, job_id)
        values |= _compared(session, int(a), int(b), sort)
    return render(request, "compare.html", **values)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_ID_DIGITS


def _compared(session: Session, a: int, b: int, sort: str) -> dict[str, Any]:
    compared = compare_jobs(session, a, b)
    sorting = read_sorting(sort, COLUMNS, "-saved", {"a": str(a), "b": str(b)})
    sides = (("A", compared.a, compared.a_secs), ("B", compared.b, compared.b_secs))
    curves = [
        Curve(f"{letter} · {job.name}", read_history(session, job.id, to_now=False).points)
        for letter, job, _ in sides
    ]
    rows = compared.tasks
    return {
        "both": sides,
        "verdict": compared.verdict,
        "rows": sort_rows(rows, sorting, COLUMNS),
        "table": sorting,
        "charts": [charts.latency_over_trials(curves), charts.latency_over_time(curves)],
        "counts": {key: sum(row.faster == key for row in rows) for key in ("a", "b", "equal", "")},
    }
