"""The page of a job: the task scheduler table, charts, failures, builds and libraries."""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from api.app_state import state_of
from api.clients.auth import Subject
from api.dependencies import ReaderDep
from api.documents.schemas import Id
from api.web import access, charts
from api.web.charts import Chart, Curve
from api.web.errors import Message
from api.web.pages.job_list import progress_of
from api.web.pages.profile_section import read_section
from api.web.rendering import render
from api.web.sorting import Keys, read_sorting, sort_rows
from records import jobs, libraries
from records.service.owners.access import Ownership
from tuner.queries import catalogue, history, picks
from tuner.queries.progress import eta_secs
from tuner.reporting import task_columns
from tuner.schemas import Build, JobSummary, JobView

router = APIRouter(include_in_schema=False)

_N_PICKS = 12
COLUMNS: Keys = {
    "id": lambda task: task.task_id,
    "name": lambda task: task.name,
    **{column.name: column.value for column in task_columns.COLUMNS},
    "gradient": lambda task: task.gradient,
    "picked": lambda task: task.last_pick.sequence if task.last_pick else None,
}


@dataclass(frozen=True)
class Coverage:
    """The origins of the kernels in the newest library of a network.

    Attributes:
        model: Name of the network's model.
        n_tuned: Subgraphs built from a record.
        n_fallback: Subgraphs without a record.
        fallbacks: Names of the subgraphs without a record.
    """

    build: Build
    model: str
    n_tuned: int
    n_fallback: int
    fallbacks: tuple[str, ...]


@router.get("/jobs/{job_id}")
def read_job(
    request: Request, _subject: access.JobReader, session: ReaderDep, job_id: Id, sort: str = ""
) -> HTMLResponse:
    """Show a job."""
    return job_page(request, session, job_id, sort=sort)


def job_page(
    request: Request,
    session: Session,
    job_id: int,
    *,
    sort: str = "",
    error: Message | None = None,
    status: int = 200,
) -> HTMLResponse:
    """Render the page of a job, with the forms if the subject may change it.

    An action that failed shows its error.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    view = state_of(request).tables.view(session, job_id)
    sorting = read_sorting(sort, COLUMNS, "-share_percent")
    ownership = Ownership(view.job.owner, view.job.project)
    subject = access.subject_of(request)
    may_change = subject.allows("submit") and subject.viewer.changes(ownership)
    builds = catalogue.builds_of(session, job_id)
    models = _models(session, job_id)
    return render(
        request,
        "job.html",
        status,
        error=error,
        view=view,
        job=view.job,
        tasks=sort_rows(view.tasks, sorting, COLUMNS),
        table=sorting,
        columns=task_columns.COLUMNS,
        progress=progress_of(view.job),
        eta=eta_secs(view.job) if view.job.state == "running" else None,
        running=[task for task in view.tasks if task.running],
        unmeasured=sum(task.latency_secs is None for task in view.tasks),
        gradient_in_ms=view.job.objective != "geometric_mean",
        charts=_charts(request, session, view),
        failures=history.read_failures(session, job_id),
        picks=picks.read_picks(session, job_id, limit=_N_PICKS),
        terms=picks.TERMS,
        builds=builds,
        webhooks=catalogue.webhooks_of(session, job_id),
        models=models,
        coverages=_coverages(session, builds, models),
        profiled=read_section(session, job_id),
        profiling=next((build for build in builds if build.profile), None),
        actions=_actions_of(view.job, builds, subject) if may_change else (),
        may_copy=bool(models) and subject.allows("submit"),
        may_change=may_change,
    )


def _actions_of(job: JobSummary, builds: list[Build], subject: Subject) -> tuple[str, ...]:
    """Return the actions that the states of a job and its builds allow a subject."""
    actions = _actions_by_state(job)
    has_quarantine = job.quarantined or any(build.quarantined for build in builds)
    return ("release", *actions) if has_quarantine and subject.allows("admin") else actions


def _actions_by_state(job: JobSummary) -> tuple[str, ...]:
    if job.state in ("queued", "running"):
        return ("pause", "cancel")
    if job.state == "paused":
        return ("resume", "cancel", "delete") if job.from_service else ("cancel", "delete")
    if job.quarantined:
        return ("delete",)
    if job.state in ("failed", "cancelled") and job.from_service:
        return ("resume", "delete")
    return ("delete",)


def _charts(request: Request, session: Session, view: JobView) -> list[Chart]:
    """Draw the charts of a job, unless a fast update of the page was requested."""
    if request.query_params.get("fragment") == "fast":
        return []
    course = history.read_history(session, view.job.id)
    if not course.points:
        return []
    curve = [Curve(view.job.name, course.points)]
    has_latency = any(point.total_latency_secs is not None for point in course.points)
    latencies = [charts.latency_over_trials(curve), charts.latency_over_time(curve)]
    return [*(latencies if has_latency else ()), charts.trials_per_task(course)]


def _models(session: Session, job_id: int) -> list[str]:
    """Return the names of a job's models; none if a command line runs it."""
    request = jobs.get_job(session, job_id).request or {}
    stored: list[dict[str, Any]] = request.get("models", [])
    return [str(model.get("name") or model.get("reference", "")) for model in stored]


def _coverages(session: Session, builds: list[Build], models: list[str]) -> list[Coverage]:
    newest: dict[int, Build] = {}
    for build in builds:
        if build.state == "done" and build.library_key is not None:
            newest.setdefault(build.model_index, build)
    return [_coverage(session, build, models) for _, build in sorted(newest.items())]


def _coverage(session: Session, build: Build, models: list[str]) -> Coverage:
    library = libraries.library_of(session, build.library_key or "")
    entries: list[dict[str, Any]] = library.manifest.get("subgraphs", []) if library else []
    missing = tuple(str(entry["name"]) for entry in entries if entry.get("record") is None)
    model = models[build.model_index] if build.model_index < len(models) else ""
    return Coverage(build, model, len(entries) - len(missing), len(missing), missing)
