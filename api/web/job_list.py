"""The page of all jobs, and the form for a new one."""

from dataclasses import dataclass
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from api import pagination
from api.dependencies import ReaderDep
from api.schemas import Text
from api.web import access
from api.web.errors import Said
from api.web.forms import EMPTY, Form
from api.web.rendering import ratio, render
from api.web.sorting import query
from records.jobs import count_by_state
from records.models import JobState
from scheduler.objectives import known_objectives
from tuner.formatting import clock
from tuner.queries import jobs as job_queries
from tuner.queries.jobs import JobOrder
from tuner.schemas import JobSummary

router = APIRouter(include_in_schema=False)

_STATES: tuple[str, ...] = get_args(JobState)
_LIMIT = 50
NEWEST: JobOrder = "-created"
SORTS: tuple[tuple[JobOrder, str], ...] = (
    (NEWEST, "newest first"),
    ("created", "oldest first"),
    ("-updated", "changed last first"),
    ("-priority", "highest priority first"),
    ("name", "by name"),
)
# Named here, because the catalogue imports what builds them.
ZOO_NAMES = (
    "inception_v3",
    "mlp",
    "mobilenet",
    "resnet-18",
    "resnet-34",
    "resnet-50",
    "resnet3d-18",
    "squeezenet_v1.1",
)


@dataclass(frozen=True)
class StateLink:
    """A link that filters by a state, and how many jobs are in it."""

    name: str
    link: str
    n: int


@dataclass(frozen=True)
class Progress:
    """How much of a job's budget is spent, from 0 to 1, and in words."""

    share: float | None
    text: str


@router.get("/")
def read_jobs(
    request: Request,
    session: ReaderDep,
    _subject: access.Reader,
    state: Annotated[list[str] | None, Query()] = None,
    q: Text = "",
    sort: str = NEWEST,
    cursor: str = "",
) -> HTMLResponse:
    """Show jobs, a page at a time."""
    chosen = tuple(name for name in state or [] if name in _STATES)
    order = next((known for known, _ in SORTS if known == sort), NEWEST)
    return job_list_page(request, session, Filter(chosen, q, order, cursor))


@dataclass(frozen=True)
class Filter:
    """Which jobs are shown, in which order, from where."""

    states: tuple[str, ...] = ()
    text: str = ""
    sort: JobOrder = NEWEST
    cursor: str = ""

    def link(self, **changes: Any) -> str:
        """Return the address of the page with something changed."""
        values: dict[str, Any] = {"q": self.text, "sort": self.sort, "cursor": "", **changes}
        states = values.pop("states", self.states)
        if values["sort"] == NEWEST:
            values["sort"] = ""
        return "/" + query([*(("state", name) for name in states), *values.items()])


def job_list_page(
    request: Request,
    session: Session,
    wanted: Filter,
    *,
    form: Form = EMPTY,
    error: Said | None = None,
    status: int = 200,
) -> HTMLResponse:
    """Render the page of jobs, with what was wrong with the form."""
    found = job_queries.list_jobs(
        session,
        states=wanted.states,
        text=wanted.text,
        sort=wanted.sort,
        after=pagination.job_after(wanted.cursor or None, wanted.sort),
        limit=_LIMIT + 1,
    )
    jobs, more = pagination.cut(found, _LIMIT)
    after = pagination.after_job(jobs[-1], wanted.sort) if more else None
    counts = count_by_state(session)
    links = [StateLink(name, wanted.link(states=(name,)), counts.get(name, 0)) for name in _STATES]
    total = sum(counts.values())
    return render(
        request,
        "jobs.html",
        status,
        jobs=jobs,
        progress={job.id: progress_of(job) for job in jobs},
        nothing=total == 0,
        states={
            "all": StateLink("all", wanted.link(states=()), total),
            "each": links,
            "chosen": wanted.states,
        },
        sorts=SORTS,
        sort=wanted.sort,
        q=wanted.text,
        first_page=wanted.link() if wanted.cursor else None,
        next_page=wanted.link(cursor=after) if after else None,
        base_url=str(request.base_url).rstrip("/"),
        form=form,
        error=error,
        objectives=known_objectives(),
        zoo_names=ZOO_NAMES,
    )


def progress_of(job: JobSummary) -> Progress:
    """Say how far a job is: by its trials, by its time, or by whichever ends it first."""
    shares, texts = [], []
    if job.budget_trials is not None:
        shares.append(ratio(job.spent_trials, job.budget_trials) or 0.0)
        texts.append(f"{job.spent_trials:,} of {job.budget_trials:,}")
    if job.budget_secs is not None:
        shares.append(ratio(job.spent_secs, job.budget_secs) or 0.0)
        texts.append(f"{clock(job.spent_secs)} of {clock(job.budget_secs)}")
    return Progress(max(shares, default=None), " · ".join(texts) or f"{job.spent_trials:,}")
