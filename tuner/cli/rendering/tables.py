"""Render what people are shown of jobs as tables and lines, for a terminal."""

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tuner.schemas import JobSummary, JobView, OutlookView, PickView, TaskView

# Terms that the resumption of a job needs and a reader does not.
_BOOKKEEPING = ("reason", "newest_record")


def task_table(tasks: Sequence[TaskView], *, n_rows: int | None = None) -> Table:
    """Render the task scheduler table; rows that do not fit are summed up in one."""
    table = Table(title="Task scheduler", title_justify="left")
    for name in ("ID", "Task", "Weight", "Latency (ms)", "GFLOPS", "Trials", "Failed", "Share"):
        table.add_column(name, justify="left" if name == "Task" else "right", no_wrap=True)
    shown, hidden = _fit(tasks, n_rows)
    for task in shown:
        table.add_row(*_cells(task), style="bold cyan" if task.running else "")
    if hidden:
        share = sum(task.share for task in hidden)
        trials = sum(task.trials for task in hidden)
        table.add_row("", f"{len(hidden)} more tasks", "", "", "", str(trials), "", f"{share:.1%}")
    return table


def job_table(jobs: Sequence[JobSummary]) -> Table:
    """Render a list of jobs."""
    table = Table()
    for name in ("Job", "State", "Network", "Objective"):
        numeric = name == "Job"
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name != "Network")
    for name in ("Latency (ms)", "Priority", "Trials", "Time"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Changed", no_wrap=True)
    for job in jobs:
        limit = f"/{job.budget_trials}" if job.budget_trials else ""
        time_limit = f"/{clock(job.budget_secs)}" if job.budget_secs else ""
        table.add_row(
            str(job.id),
            job.state,
            Text(job.network or job.name),
            job.objective,
            milliseconds(job.total_latency_secs),
            str(job.priority),
            f"{job.trials}{limit}",
            f"{clock(job.spent_secs)}{time_limit}",
            f"{job.updated.astimezone():%Y-%m-%d %H:%M}",
        )
    return table


def job_facts(view: JobView) -> list[Text]:
    """Say what belongs below the table of a job, a line each."""
    job = view.job
    n_open = sum(1 for task in view.tasks if task.latency_secs is None)
    latency = f"{milliseconds(job.total_latency_secs)} ms estimated in all"
    if n_open:
        latency = f"unknown: {n_open} of {len(view.tasks)} tasks have no best record yet"
    facts = [
        ("job", f"{job.id}, {job.state}" + (f": {job.message}" if job.message else "")),
        ("changed", f"{job.updated.astimezone():%Y-%m-%d %H:%M:%S}"),
        ("network", job.network or job.name),
        ("target", f"{job.target} on {job.device or 'an unnamed device'}"),
        ("objective", f"{job.objective}, seed {job.seed}"),
        ("spent", spent(job)),
        ("latency", latency),
    ]
    if view.outlook is not None:
        said = f"{view.outlook.n_trials} more trials save {saving(view.outlook)}"
        facts.append(("forecast", said))
    if view.last_pick is not None:
        facts.append(("last pick", _pick_line(view.last_pick)))
    return [Text(f"{label:<10} {text}") for label, text in facts]


def pick_table(picks: Sequence[PickView], n_all: int) -> Table:
    """Render the last picks of a job that has ``n_all``, with every term of each decision."""
    table = Table(title=f"Last picks of {n_all}", title_justify="left")
    for name in ("Pick", "At", "ID", "Trials", "Reason", "Terms"):
        numeric = name in ("Pick", "ID", "Trials")
        table.add_column(
            name, justify="right" if numeric else "left", no_wrap=name not in ("Reason", "Terms")
        )
    for pick in picks:
        table.add_row(
            str(pick.sequence),
            f"{pick.created.astimezone():%H:%M:%S}",
            "?" if pick.task is None else str(pick.task),
            f"{pick.n_trials}{'' if pick.done else ' (open)'}",
            Text(pick.reason),
            Text(_terms(pick.terms)),
        )
    return table


def why_line(pick: PickView) -> str:
    """Explain a pick in words."""
    return f"pick {pick.sequence}: {_task_name(pick)}, {pick.n_trials} trials: {pick.why}"


def state_line(job: JobSummary) -> str:
    """Say where a job stands, in one line."""
    latency = milliseconds(job.total_latency_secs)
    return f"{job.state}  Total latency {latency} ms  {spent(job)}"


def spent(job: JobSummary) -> str:
    """Say what a job has spent of what it may spend."""
    trials = f"{job.spent_trials}"
    trials += " trials" if job.budget_trials is None else f" of {job.budget_trials} trials"
    limit = "" if job.budget_secs is None else f" of {clock(job.budget_secs)}"
    return f"{trials}, {clock(job.spent_secs)}{limit}"


def milliseconds(secs: float | None) -> str:
    """Format a latency; a dash for one not known yet."""
    return "-" if secs is None or not math.isfinite(secs) else f"{secs * 1e3:.4f}"


def saving(outlook: OutlookView) -> str:
    """Format what trials are forecast to save, with its standard deviation."""
    return f"{outlook.saving * 1e3:.2g} ± {outlook.spread * 1e3:.1g} ms"


def clock(secs: float | None) -> str:
    """Format a duration as h:mm:ss; a dash for one not known yet."""
    if secs is None or not math.isfinite(secs):
        return "-"
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def _cells(task: TaskView) -> tuple[str, ...]:
    return (
        str(task.id),
        task.name,
        str(task.weight),
        milliseconds(task.latency_secs),
        "-" if task.latency_secs is None else f"{task.gflops:.1f}",
        f"{task.trials}{' (all)' if task.exhausted else ''}",
        str(task.failed) if task.failed else "",
        f"{task.share:.1%}" if task.share else "-",
    )


def _fit(
    tasks: Sequence[TaskView], n_rows: int | None
) -> tuple[Sequence[TaskView], Sequence[TaskView]]:
    """Keep the tasks that weigh most, in the order of the table; return them and the others."""
    if n_rows is None or len(tasks) <= n_rows:
        return tasks, []
    heaviest = sorted(tasks, key=lambda task: (-task.share, task.id))
    kept = {task.id for task in heaviest[: n_rows - 1]}
    return (
        [task for task in tasks if task.id in kept],
        [task for task in tasks if task.id not in kept],
    )


def _pick_line(pick: PickView) -> str:
    return (
        f"number {pick.sequence}: {_task_name(pick)}, {pick.n_trials} trials, "
        f"{pick.reason or 'no reason kept'}{'' if pick.done else ' (open)'}"
    )


def _task_name(pick: PickView) -> str:
    if pick.task is None:
        return f"task {pick.task_id} of another network"
    return f"task {pick.task} ({pick.task_name})"


def _terms(terms: dict[str, Any]) -> str:
    shown = {name: value for name, value in terms.items() if name not in _BOOKKEEPING}
    return ", ".join(f"{name} {_short(value)}" for name, value in shown.items())


def _short(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
