"""The page of all jobs, with the form for a new one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from api.app_state import state_of
from api.dependencies import ReaderDep
from api.documents import pagination
from api.documents.schemas import OptionalId, Text
from api.web import access
from api.web.errors import Message
from api.web.forms.sent import EMPTY, Form
from api.web.rendering import ratio, render
from api.web.sorting import query
from records import jobs as job_rows
from records import labels
from records.errors import NoSuchRow
from records.jobs import count_by_state
from records.models import JobState
from records.service.owners.access import check_visible
from scheduler.objectives import known_objectives
from tuner.formatting import clock
from tuner.jobs.buckets import text_of
from tuner.jobs.spec import TuneSpec
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
# Listed here, because importing the zoo imports the libraries that build its networks.
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
    """A link that filters by a state, with the number of its jobs."""

    name: str
    link: str
    n: int


@dataclass(frozen=True)
class Progress:
    """The spent share of a job's budget, from 0 to 1, and the same as text."""

    share: float | None
    text: str


@router.get("/")
def read_jobs(  # noqa: PLR0913, PLR0917  a parameter for each field of the query
    request: Request,
    _subject: access.Reader,
    session: ReaderDep,
    state: Annotated[list[str] | None, Query()] = None,
    q: Text = "",
    tag: Text = "",
    sort: str = NEWEST,
    cursor: str = "",
    copy: OptionalId = None,
) -> HTMLResponse:
    """Show jobs, a page at a time; with ``copy``, the form has the options of that job."""
    chosen = tuple(name for name in state or [] if name in _STATES)
    order = next((name for name, _ in SORTS if name == sort), NEWEST)
    form = EMPTY if copy is None else _copied(request, session, copy)
    return job_list_page(request, session, Filter(chosen, q, order, cursor, tag), form=form)


def _copied(request: Request, session: Session, job_id: int) -> Form:
    """Return the form that submits the request of a job again.

    Raises:
        NoSuchRow: If the sender may not see the job, or a command line ran it.
    """
    check_visible(session, access.subject_of(request).viewer, job_id)
    job = job_rows.get_job(session, job_id)
    if not job.request:
        raise NoSuchRow(f"no request of job {job_id}")
    stored = job.request
    first: dict[str, Any] = stored["models"][0]
    references = dict.fromkeys(str(each["reference"]) for each in stored["models"])
    # Each set of input shapes is a model of its own.
    sets = (m["inputs"] for m in stored["models"] if m["reference"] == first["reference"])
    limits = {"trials": job.budget_trials, "seconds": job.budget_secs, "priority": job.priority}
    options = {
        name: stored[name]
        for name, field in TuneSpec.model_fields.items()
        if name in stored and stored[name] != field.default
    }
    sent = {
        **{name: _texts(value) for name, value in (options | limits).items()},
        "tag": labels.tags_of(session, [job_id])[job_id],
        # Names of many networks are longer than a form takes.
        "name": [(job.name or "")[:200]],
        "zoo": [name.removeprefix("zoo:") for name in references if name.startswith("zoo:")],
        "models_of": [str(job_id)] * any(name.startswith("upload:") for name in references),
        "target": [first["target"]],
        "objective": [job.objective],
        "input": [f"{k}={','.join(map(_text, size))}" for each in sets for k, size in each.items()],
        "bucket": [text_of(name, dict(sizes)) for name, sizes in first["buckets"].items()],
        "mask": [f"{name}={_text(value)}" for name, value in first["masks"].items()],
        "random_weights": _texts(first["random_weights"]),
    }
    return Form(sent, open=True)


def _texts(value: Any) -> list[str]:
    """Return the texts of an option, one for each of its parts; none if it is not set."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [f"{key}={_text(each)}" if key else _text(each) for key, each in value.items()]
    return [_text(each) for each in (value if isinstance(value, (list, tuple)) else [value])]


def _text(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Filter:
    """Filter, order and cursor of the list; ``tag`` may have several tags."""

    states: tuple[str, ...] = ()
    text: str = ""
    sort: JobOrder = NEWEST
    cursor: str = ""
    tag: str = ""

    def link(self, **changes: Any) -> str:
        """Return the address of the page with other values."""
        values: dict[str, Any] = {
            "q": self.text,
            "tag": self.tag,
            "sort": self.sort,
            "cursor": "",
            **changes,
        }
        states = values.pop("states", self.states)
        if values["sort"] == NEWEST:
            values["sort"] = ""
        return "/" + query([*(("state", name) for name in states), *values.items()])


def job_list_page(
    request: Request,
    session: Session,
    chosen: Filter,
    *,
    form: Form = EMPTY,
    error: Message | None = None,
    status: int = 200,
) -> HTMLResponse:
    """Render the page of jobs, with the error of a form."""
    viewer = access.subject_of(request).viewer
    rows = job_queries.list_jobs(
        session,
        states=chosen.states,
        text=chosen.text,
        tags=chosen.tag.replace(",", " ").split(),
        sort=chosen.sort,
        after=pagination.job_after(chosen.cursor or None, chosen.sort),
        limit=_LIMIT + 1,
        viewer=viewer,
    )
    jobs, more = pagination.cut(rows, _LIMIT)
    after = pagination.after_job(jobs[-1], chosen.sort) if more else None
    counts = count_by_state(session, viewer)
    links = [StateLink(name, chosen.link(states=(name,)), counts.get(name, 0)) for name in _STATES]
    total = sum(counts.values())
    return render(
        request,
        "jobs.html",
        status,
        jobs=jobs,
        progress={job.id: progress_of(job) for job in jobs},
        nothing=total == 0,
        states={
            "all": StateLink("all", chosen.link(states=()), total),
            "each": links,
            "chosen": chosen.states,
        },
        sorts=SORTS,
        sort=chosen.sort,
        q=chosen.text,
        tag=chosen.tag,
        first_page=chosen.link() if chosen.cursor else None,
        next_page=chosen.link(cursor=after) if after else None,
        base_url=str(request.base_url).rstrip("/"),
        form=form,
        error=error,
        objectives=known_objectives(),
        zoo_names=ZOO_NAMES,
        has_webhooks=state_of(request).settings.webhooks is not None,
    )


def progress_of(job: JobSummary) -> Progress:
    """Return the progress of a job towards its limits; the share is that of the nearest limit."""
    shares, texts = [], []
    if job.budget_trials is not None:
        shares.append(ratio(job.spent_trials, job.budget_trials) or 0.0)
        texts.append(f"{job.spent_trials:,} of {job.budget_trials:,}")
    if job.budget_secs is not None:
        shares.append(ratio(job.spent_secs, job.budget_secs) or 0.0)
        texts.append(f"{clock(job.spent_secs)} of {clock(job.budget_secs)}")
    return Progress(max(shares, default=None), " · ".join(texts) or f"{job.spent_trials:,}")
