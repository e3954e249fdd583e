"""``tuner table``: the task scheduler table of a job."""

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.commands import options

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from sqlalchemy.orm import Session, sessionmaker

    from records.models import Job, Network, Pick, Target
    from tuner.overview import Overview

_REDRAW_SECS = 1.0
_MAX_KNOWN = 10
_CTRL_C = 130
_N_EXPLAINED = 10
# Lines a terminal needs beside the rows of the table and the picks.
_FRAME_LINES = 14
# Terms that the resumption of a job needs and a reader does not.
_BOOKKEEPING = ("reason", "newest_record")


@dataclass(frozen=True)
class JobView:
    """A job as the database has it; ``picks`` in sequence, all of them."""

    job: "Job"
    network: "Network"
    target: "Target"
    overview: "Overview"
    picks: "list[Pick]"

    @property
    def last_pick(self) -> "Pick | None":
        """The last decision, whether its round is over or not."""
        return self.picks[-1] if self.picks else None

    @property
    def current(self) -> int | None:
        """Task id of the round that runs now, if any."""
        last = self.last_pick
        if last is None or last.done or self.job.state != "running":
            return None
        return last.task_id

    def last_picks(self, n_picks: int) -> "list[Pick]":
        """Return the last picks, in sequence."""
        return self.picks[len(self.picks) - n_picks :] if n_picks < len(self.picks) else self.picks

    def index_of(self, task_id: int) -> int | None:
        """Return the row of a task in the table."""
        ids = [row.task_id for row in self.overview.rows]
        return ids.index(task_id) if task_id in ids else None


def table(
    job: Annotated[
        int | None,
        typer.Argument(
            help="Number of the job [default: the one that changed last].", show_default=False
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Redraw every second while the job runs.")
    ] = False,
    n_picks: Annotated[
        int,
        typer.Option(
            "--picks", metavar="N", min=0, help="Show the last N picks: who got a round, and why."
        ),
    ] = 0,
    why: Annotated[
        bool,
        typer.Option("--why", help="Explain the last picks in words; --picks says how many [10]."),
    ] = False,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Show the task scheduler table of a job, from the database.

    It only reads, so it may run beside a tuning run: what each task has got, what it gave, what
    it weighs, and why the last round went where it went.

    Example:
        tuner table

        tuner table 3 --picks 20

        tuner table 3 --why

        tuner table --watch
    """
    from tuner.context import open_context
    from tuner.errors import RequestError
    from tuner.progress import stdout_console

    if watch and json_output:
        raise RequestError("--watch and --json do not go together: --json prints one object")
    n_picks = n_picks or (_N_EXPLAINED if why else 0)
    with open_context(database, data_dir) as context:
        with context.readers() as session:
            job_id = find_job(session, job).id
        if json_output:
            options.print_json(_as_json(_read(context.readers, job_id), n_picks))
            return
        console = stdout_console()
        if watch:
            _watch(context.readers, job_id, n_picks, console)
        view = _read(context.readers, job_id)
        console.print(_render(view, 0 if why else n_picks))
        if why:
            _explain(view, n_picks, console)


def _explain(view: JobView, n_picks: int, console: "Console") -> None:
    from tuner.explaining import explain

    for pick in view.last_picks(n_picks):
        console.print(
            f"pick {pick.sequence}: {_task_name(view, pick)}, {pick.n_trials} trials: "
            f"{explain(pick.terms)}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def find_job(session: "Session", job_id: int | None) -> "Job":
    """Return a job; None asks for the one that changed last.

    Raises:
        RequestError: If there is no such job; the message names those there are.
    """
    from records import jobs
    from records.models import Network
    from tuner.errors import RequestError

    known = jobs.list_jobs(session)
    found = next((job for job in known if job.id == job_id), None)
    if job_id is None:
        found = jobs.latest_job(session)
    if found is not None:
        return found
    if not known:
        raise RequestError("there are no jobs yet: tuner tune MODEL makes one")
    names = [
        f"{job.id} ({session.get_one(Network, job.network_id).name}, {job.state})"
        for job in known[:_MAX_KNOWN]
    ]
    more = f" and {len(known) - _MAX_KNOWN} older ones" if len(known) > _MAX_KNOWN else ""
    raise RequestError(f"no job {job_id}; known jobs: {', '.join(names)}{more}")


def _read(sessions: "sessionmaker[Session]", job_id: int) -> JobView:
    from records import picks, tasks
    from records.models import Job, Network, Target
    from tuner.errors import RequestError
    from tuner.overview import read_overview

    with sessions() as session:
        job = session.get_one(Job, job_id)
        weighted = tasks.tasks_of_job(session, job)
        if not weighted:
            raise RequestError(f"job {job_id} has no tasks: its network was not split yet")
        return JobView(
            job=job,
            network=session.get_one(Network, job.network_id),
            target=session.get_one(Target, job.target_id),
            overview=read_overview(session, weighted, job),
            picks=picks.picks_of(session, job_id),
        )


def _watch(
    sessions: "sessionmaker[Session]", job_id: int, n_picks: int, console: "Console"
) -> None:
    """Redraw until the job rests or somebody presses Ctrl-C, which is no failure here."""
    from rich.live import Live

    from tuner.interrupts import Interrupted, interruptible

    try:
        with (
            interruptible(),
            Live(
                console=console, auto_refresh=False, transient=True, vertical_overflow="crop"
            ) as live,
        ):
            shown = ""
            while (view := _read(sessions, job_id)).job.state in ("queued", "running"):
                if console.is_terminal:
                    n_rows = max(console.size.height - _FRAME_LINES - min(n_picks, 10), 5)
                    live.update(_render(view, n_picks, n_rows), refresh=True)
                elif (line := _summary(view)) != shown:
                    shown = line
                    console.print(line, highlight=False, markup=False, soft_wrap=True)
                    console.file.flush()
                time.sleep(_REDRAW_SECS)
    except Interrupted as stop:
        if stop.exit_code != _CTRL_C:
            raise


def _summary(view: JobView) -> str:
    from tuner.progress import milliseconds

    return (
        f"{view.job.state}  Total latency {milliseconds(view.overview.total_secs)} ms  "
        f"{_spent(view)}"
    )


def _render(view: JobView, n_picks: int, n_rows: int | None = None) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    from tuner.progress import task_table

    parts: list[RenderableType] = [
        task_table(view.overview, n_rows=n_rows, current=view.current),
        *(Text(f"{label:<10} {text}") for label, text in _facts(view)),
    ]
    if n_picks and view.picks:
        parts.append(_pick_table(view, n_picks))
    return Group(*parts)


def _facts(view: JobView) -> list[tuple[str, str]]:
    from tuner.overview import look_ahead_on
    from tuner.progress import milliseconds, saving

    job = view.job
    n_open = sum(1 for row in view.overview.rows if not math.isfinite(row.latency))
    latency = f"{milliseconds(view.overview.total_secs)} ms estimated in all"
    if n_open:
        latency = f"unknown: {n_open} of {len(view.overview.rows)} tasks have no best record yet"
    facts = [
        ("job", f"{job.id}, {job.state}" + (f": {job.message}" if job.message else "")),
        ("changed", f"{job.updated.astimezone():%Y-%m-%d %H:%M:%S}"),
        ("network", view.network.name),
        ("target", f"{view.target.spec} on {view.target.device.get('name', 'an unnamed device')}"),
        ("objective", f"{job.objective}, seed {job.seed}"),
        ("spent", _spent(view)),
        ("latency", latency),
    ]
    outlook = look_ahead_on(view.overview)
    if outlook is not None:
        facts.append(("forecast", f"{outlook.n_trials} more trials save {saving(outlook)}"))
    if view.last_pick is not None:
        facts.append(("last pick", _pick_line(view, view.last_pick)))
    return facts


def _spent(view: JobView) -> str:
    from tuner.progress import clock

    job = view.job
    trials = f"{view.overview.spent_trials(job.budget_trials)}"
    trials += " trials" if job.budget_trials is None else f" of {job.budget_trials} trials"
    limit = "" if job.budget_secs is None else f" of {clock(job.budget_secs)}"
    return f"{trials}, {clock(job.spent_secs)}{limit}"


def _pick_line(view: JobView, pick: "Pick") -> str:
    return (
        f"number {pick.sequence}: {_task_name(view, pick)}, {pick.n_trials} trials, "
        f"{pick.terms.get('reason', 'no reason kept')}{'' if pick.done else ' (open)'}"
    )


def _task_name(view: JobView, pick: "Pick") -> str:
    index = view.index_of(pick.task_id)
    if index is None:
        return f"task {pick.task_id} of another network"
    return f"task {index} ({view.overview.rows[index].name})"


def _pick_table(view: JobView, n_picks: int) -> "Table":
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=f"Last picks of {len(view.picks)}", title_justify="left")
    for name in ("Pick", "At", "ID", "Trials", "Reason", "Terms"):
        numeric = name in ("Pick", "ID", "Trials")
        shown.add_column(
            name, justify="right" if numeric else "left", no_wrap=name not in ("Reason", "Terms")
        )
    for pick in view.last_picks(n_picks):
        index = view.index_of(pick.task_id)
        shown.add_row(
            str(pick.sequence),
            f"{pick.created.astimezone():%H:%M:%S}",
            "?" if index is None else str(index),
            f"{pick.n_trials}{'' if pick.done else ' (open)'}",
            Text(str(pick.terms.get("reason", ""))),
            Text(_terms(pick.terms)),
        )
    return shown


def _terms(terms: dict[str, Any]) -> str:
    shown = {name: value for name, value in terms.items() if name not in _BOOKKEEPING}
    return ", ".join(f"{name} {_short(value)}" for name, value in shown.items())


def _short(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _as_json(view: JobView, n_picks: int) -> dict[str, Any]:
    from tuner.overview import look_ahead_on
    from tuner.reports import rows_as_json

    job = view.job
    last = view.last_pick
    outlook = look_ahead_on(view.overview)
    return {
        "job": job.id,
        "network": view.network.name,
        "sha256": view.network.sha256,
        "target": view.target.spec,
        "device": view.target.device,
        "state": job.state,
        "message": job.message,
        "objective": job.objective,
        "seed": job.seed,
        "budget_trials": job.budget_trials,
        "budget_secs": job.budget_secs,
        "spent_trials": view.overview.spent_trials(job.budget_trials),
        "spent_secs": job.spent_secs,
        "created": job.created.isoformat(),
        "updated": job.updated.isoformat(),
        "total_latency_secs": view.overview.total_secs,
        "trials": view.overview.n_trials,
        "tasks": rows_as_json(view.overview),
        "outlook": outlook and vars(outlook),
        "last_pick": None if last is None else _pick_as_json(view, last),
        "picks": [_pick_as_json(view, pick) for pick in view.last_picks(n_picks)],
    }


def _pick_as_json(view: JobView, pick: "Pick") -> dict[str, Any]:
    from tuner.explaining import explain

    index = view.index_of(pick.task_id)
    return {
        "sequence": pick.sequence,
        "task": index,
        "workload": None if index is None else view.overview.rows[index].workload,
        "trials": pick.n_trials,
        "done": pick.done,
        "created": pick.created.isoformat(),
        "reason": pick.terms.get("reason"),
        "why": explain(pick.terms),
        "terms": {name: value for name, value in pick.terms.items() if name != "reason"},
    }
