"""The comparison of two jobs: their latencies, their progress, and the faster one by workload."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from api.dependencies import ReaderDep
from api.web import access, charts
from api.web.charts import Curve
from api.web.rendering import render
from api.web.sorting import Keys, read_sorting, sort_rows
from records.service.access import check_visible
from tuner.queries import history as job_history
from tuner.queries import jobs as job_queries
from tuner.queries.history import OwnResult, own_results
from tuner.schemas import HistoryView, JobSummary, JobView

router = APIRouter(include_in_schema=False)

# Latencies this close count as equal: measuring again changes as much.
_EQUAL = 0.01
_N_CHOICES = 200
_MAX_ID_DIGITS = 9


@dataclass(frozen=True)
class Side:
    """Results of one job for one workload: its own best latency, seconds, and its trials."""

    weight: int
    latency: float | None
    trials: int

    @property
    def total(self) -> float | None:
        """Seconds in one inference."""
        return None if self.latency is None else self.weight * self.latency


@dataclass(frozen=True)
class Difference:
    """A workload of one of the jobs, or of both."""

    workload: str
    name: str
    a: Side | None
    b: Side | None

    @property
    def speedup(self) -> float | None:
        """Latency of A divided by that of B."""
        if not self.a or not self.b or not self.a.latency or not self.b.latency:
            return None
        return self.a.latency / self.b.latency

    @property
    def faster(self) -> str:
        """The faster side: a, b or equal; empty while unknown."""
        if self.speedup is None:
            return ""
        if abs(self.speedup - 1) <= _EQUAL:
            return "equal"
        return "b" if self.speedup > 1 else "a"

    @property
    def saved(self) -> float | None:
        """Seconds that B saves of one inference; None unless both measured the workload."""
        if not self.a or not self.b or self.a.total is None or self.b.total is None:
            return None
        return self.a.total - self.b.total


COLUMNS: Keys = {
    "name": lambda row: row.name,
    "a": lambda row: row.a.latency if row.a else None,
    "b": lambda row: row.b.latency if row.b else None,
    "speedup": lambda row: row.speedup,
    "saved": lambda row: None if row.saved is None else abs(row.saved),
}


@router.get("/compare")
def compare_jobs(
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
    views = [job_queries.read_job(session, job_id) for job_id in (a, b)]
    histories = [job_history.read_history(session, job_id) for job_id in (a, b)]
    sorting = read_sorting(sort, COLUMNS, "-saved", {"a": str(a), "b": str(b)})
    curves = [
        Curve(f"{letter} · {view.job.name}", history.points)
        for letter, view, history in zip("AB", views, histories, strict=True)
    ]
    rows = differences(session, views[0], views[1])
    totals = [_total(view, history) for view, history in zip(views, histories, strict=True)]
    return {
        "both": tuple(zip("AB", (view.job for view in views), totals, strict=True)),
        "verdict": _verdict(views[0].job, views[1].job, totals[0], totals[1]),
        "rows": sort_rows(rows, sorting, COLUMNS),
        "table": sorting,
        "charts": [charts.latency_over_trials(curves), charts.latency_over_time(curves)],
        "counts": {key: sum(row.faster == key for row in rows) for key in ("a", "b", "equal", "")},
        "same_target": views[0].job.target_id == views[1].job.target_id,
    }


def differences(session: Session, a: JobView, b: JobView) -> list[Difference]:
    """Pair the workloads of two jobs, by the measurements of each job.

    Best records belong to all jobs of a target, so they would make any two jobs equal.
    """
    sides = [_sides(session, view) for view in (a, b)]
    names = {task.workload: task.name for view in (b, a) for task in view.tasks}
    return [
        Difference(workload, name, sides[0].get(workload), sides[1].get(workload))
        for workload, name in sorted(names.items(), key=lambda item: (item[1], item[0]))
    ]


def _sides(session: Session, view: JobView) -> Mapping[str, Side]:
    own = own_results(session, view.job.id)
    return {
        task.workload: Side(task.weight, *own.get(task.task_id, OwnResult())) for task in view.tasks
    }


def _total(view: JobView, history: HistoryView) -> float | None:
    """Return the latency after the last round of a job; other jobs may have improved it since."""
    totals = [p.total_latency_secs for p in history.points if p.total_latency_secs is not None]
    return totals[-1] if totals else view.job.total_latency_secs


def _verdict(a: JobSummary, b: JobSummary, a_secs: float | None, b_secs: float | None) -> str:
    if a.network_id != b.network_id:
        return "The jobs tune different networks, so their latencies do not compare."
    if a_secs is None or b_secs is None:
        return "One of the jobs has no latency yet."
    ratio = a_secs / b_secs
    if abs(ratio - 1) <= _EQUAL:
        return "Both jobs reached the same latency, within 1 %."
    first, second = (f"B ({b.name})", "A") if ratio > 1 else (f"A ({a.name})", "B")
    return f"{first} runs its network {max(ratio, 1 / ratio):.2f} times as fast as {second}."
