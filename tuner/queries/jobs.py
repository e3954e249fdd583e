"""Jobs as lists and pages show them.

Everything comes from sums and keys, so that a job of a million records is read as fast as one
of a hundred.
"""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from sqlalchemy import ColumnElement, Text, cast, func, select
from sqlalchemy.orm import Session

from records import jobs, labels, networks, tasks
from records.models import Job, JobState, JobStatus, Network, Target
from records.service.owners.access import EVERYTHING, Viewer, visible_jobs
from records.targets import device_name
from records.tasks import WeightedTask
from records.tuning import events, job_states, task_stats
from tuner.jobs.submission import names_of
from tuner.queries.latencies import total_latencies, untuned_latency
from tuner.queries.picks import last_pick
from tuner.queries.tasks import read_tasks
from tuner.schemas import JobSummary, JobView, OutlookView, SplitView
from tuner.tuning.tasks.snapshot import look_ahead_on, read_snapshot

# Options of a command that tell where the database is.
_STORE_OPTIONS = ("--database", "--data-dir")
JobOrder = Literal[
    "created", "-created", "updated", "-updated", "priority", "-priority", "name", "-name"
]
# The same name as _summary gives a job.
_NAME = func.lower(
    func.coalesce(func.nullif(Job.name, ""), Network.name, "job " + cast(Job.id, Text))
)
# Networks are shared by owners, who name them each by the files that they submit.
_FIRST_MODEL = Job.request["models"][0]["name"].as_string()
_SORTED_BY: dict[str, ColumnElement[Any]] = {
    "created": Job.created.expression,
    "updated": Job.updated.expression,
    "priority": Job.priority.expression,
    "name": _NAME,
}


def read_job(session: Session, job_id: int) -> JobView:
    """Return the task scheduler table of a job.

    Raises:
        NoSuchRow: If the job does not exist.
    """
    job = jobs.get_job(session, job_id)
    status = events.status_of(session, job_id)
    weighted = tasks.tasks_of_job(session, job)
    spent_trials, outlook = _forecast(session, job, status, weighted)
    (summary,) = summaries(session, [job])
    return JobView(
        job=replace(summary, spent_trials=max(spent_trials, summary.trials)),
        tasks=read_tasks(session, job, status, weighted, is_running=summary.state == "running"),
        outlook=outlook,
        last_pick=last_pick(session, job_id, weighted),
        split=_split(session, job),
        untuned_latency_secs=untuned_latency(session, weighted),
    )


def list_jobs(  # noqa: PLR0913  a keyword for each part of the query
    session: Session,
    *,
    states: Sequence[str] = (),
    text: str = "",
    tags: Sequence[str] = (),
    sort: JobOrder = "-created",
    after: tuple[Any, int] | None = None,
    limit: int = 50,
    viewer: Viewer = EVERYTHING,
) -> list[JobSummary]:
    """Return jobs, a page at a time.

    Args:
        states: States to include; empty for all.
        text: Part of the name of the job or its network, in any case.
        sort: Column to sort by; a minus puts the largest first. Ties are sorted by number.
        after: Last job of the previous page: its value in the sorted column, and its number.
        limit: Maximum of jobs on the page.
        viewer: Client that sees them.
    """
    stmt = (
        select(Job)
        .where(~Job.hidden, visible_jobs(viewer), labels.has_tags(tags))
        .outerjoin(Network, Network.id == Job.network_id)
    )
    if states:
        stmt = stmt.where(job_states.shown(session).in_(states))
    if text:
        stmt = stmt.where(
            Job.name.icontains(text, autoescape=True)
            | Network.name.icontains(text, autoescape=True)
            | _FIRST_MODEL.icontains(text, autoescape=True)
        )
    column, falls = _SORTED_BY[sort.lstrip("-")], sort.startswith("-")
    if after is not None:
        value, number = after
        last = func.lower(value) if column is _NAME else value
        beyond = column < last if falls else column > last
        later = Job.id < number if falls else Job.id > number
        stmt = stmt.where(beyond | ((column == last) & later))
    order = (column.desc(), Job.id.desc()) if falls else (column, Job.id)
    return summaries(session, list(session.scalars(stmt.order_by(*order).limit(limit))))


def recent_jobs(session: Session, limit: int, viewer: Viewer = EVERYTHING) -> list[JobSummary]:
    """Return the jobs with the highest numbers that a viewer may see, the newest first."""
    stmt = select(Job).where(~Job.hidden, visible_jobs(viewer)).order_by(Job.id.desc()).limit(limit)
    return summaries(session, list(session.scalars(stmt)))


def job_names(session: Session, job_ids: Sequence[int]) -> dict[int, str]:
    """Return the names of jobs, by number; deleted jobs are included."""
    rows = session.scalars(select(Job).where(Job.id.in_(job_ids)))
    return {job.id: job.name for job in summaries(session, list(rows))}


def summaries(session: Session, rows: Sequence[Job]) -> list[JobSummary]:
    """Return jobs as a list shows them."""
    ids = [job.id for job in rows]
    stmt = select(JobStatus).where(JobStatus.job_id.in_(ids))
    statuses = {status.job_id: status for status in session.scalars(stmt)}
    states = job_states.states_of(session, ids)
    n_trials = task_stats.trials_of_jobs(session, ids)
    totals = total_latencies(session, ids)
    tags = labels.tags_of(session, ids)
    networks_by_id = {
        network.id: network
        for network in session.scalars(
            select(Network).where(Network.id.in_({job.network_id for job in rows}))
        )
    }
    targets_by_id = {
        target.id: target
        for target in session.scalars(
            select(Target).where(Target.id.in_({job.target_id for job in rows}))
        )
    }
    return [
        _summary(
            job,
            None if job.network_id is None else networks_by_id[job.network_id],
            None if job.target_id is None else targets_by_id[job.target_id],
            statuses.get(job.id),
            state=states[job.id],
            n_trials=n_trials.get(job.id, 0),
            total_latency_secs=totals.get(job.id),
            tags=tags[job.id],
        )
        for job in rows
    ]


def _forecast(
    session: Session, job: Job, status: JobStatus | None, weighted: Sequence[WeightedTask]
) -> tuple[int, OutlookView | None]:
    """Return the trials that count against a job's budget, and what more of them would save."""
    if status is not None:
        outlook = None if status.outlook is None else OutlookView(**status.outlook)
        return status.spent_trials, outlook
    if not weighted:
        return 0, None
    # No coordinator has stored a status: the job waits.
    snapshot = read_snapshot(session, weighted, job)
    ahead = look_ahead_on(snapshot)
    outlook = None if ahead is None else OutlookView(**asdict(ahead))
    return snapshot.spent_trials(job.budget_trials), outlook


def _summary(  # noqa: PLR0913  what the queries of a page found for one job
    job: Job,
    network: Network | None,
    target: Target | None,
    status: JobStatus | None,
    *,
    state: JobState,
    n_trials: int,
    total_latency_secs: float | None,
    tags: list[str],
) -> JobSummary:
    return JobSummary(
        id=job.id,
        name=job.name or (network.name if network else f"job {job.id}"),
        state=state,
        message=job.message or (_how_to_resume(job) if state == "paused" else None),
        phase=status.phase if status is not None and state == "running" else None,
        network_id=job.network_id,
        network=_network_name(job, network),
        target_id=job.target_id,
        target=target.spec if target else None,
        device=device_name(target.spec, target.device) if target else None,
        objective=job.objective,
        seed=job.seed,
        priority=job.priority,
        budget_trials=job.budget_trials,
        budget_secs=job.budget_secs,
        trials=n_trials,
        spent_trials=max(n_trials, 0 if status is None else status.spent_trials),
        spent_secs=job.spent_secs,
        total_latency_secs=total_latency_secs,
        quarantined=job.quarantined,
        n_events=job.n_events,
        from_service=job.submission != "",
        owner=job.owner,
        project=job.project,
        tags=tags,
        note=job.note,
        created=job.created,
        updated=job.updated,
    )


def _how_to_resume(job: Job) -> str | None:
    """Return what resumes the paused job of a command, as far as it is known.

    Readers need not know where the database is, and a path or a URL would tell them.
    """
    if job.submission:
        return None
    command = job.settings.get("command")
    if not command:
        return "tuning its network again resumes it"
    words, shown = shlex.split(command), []
    for before, word in zip(["", *words], words, strict=False):
        if before not in _STORE_OPTIONS and word.partition("=")[0] not in _STORE_OPTIONS:
            shown.append(word)
    where = ", with the same database" if len(shown) < len(words) else ""
    return f"`{shlex.join(shown)}` resumes it{where}"


def _network_name(job: Job, network: Network | None) -> str | None:
    if network is None:
        return None
    return names_of(job.request or {}) or network.name


def _split(session: Session, job: Job) -> SplitView | None:
    if job.network_id is None or job.target_id is None:
        return None
    extraction = networks.extraction_of(session, job.network_id, job.target_id)
    return SplitView(
        sha256=session.get_one(Network, job.network_id).sha256,
        kernel_calls=extraction.n_kernel_calls if extraction else None,
        notes=extraction.notes if extraction else [],
        device=session.get_one(Target, job.target_id).device,
    )
