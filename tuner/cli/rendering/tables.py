"""Tables of jobs, tasks and picks for a terminal."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tuner.formatting import (
    TASK_COLUMNS,
    clock,
    local_time,
    milliseconds,
    percent,
    spent,
    task_cells,
    task_name,
    trial_count,
)
from tuner.schemas import JobSummary, PickView, TaskView

# Terms that resume a job and explain nothing.
_BOOKKEEPING = ("reason", "newest_record")


def task_table(tasks: Sequence[TaskView], *, n_rows: int | None = None) -> Table:
    """Render the task scheduler table; one row sums up the tasks beyond ``n_rows``."""
    table = Table(title="Task scheduler", title_justify="left")
    for name in TASK_COLUMNS:
        table.add_column(name, justify="left" if name == "Task" else "right", no_wrap=True)
    shown, hidden = _fit(tasks, n_rows)
    for task in shown:
        table.add_row(*task_cells(task), style="bold cyan" if task.running else "")
    if hidden:
        share = percent(sum(task.share for task in hidden))
        trials = sum(task.trials for task in hidden)
        table.add_row("", f"{len(hidden)} more tasks", "", "", "", "", str(trials), "", share)
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
    has_owners = any(job.owner for job in jobs)
    if has_owners:
        table.add_column("Owner")
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
            local_time(job.updated),
            *([Text(job.owner or "")] if has_owners else []),
        )
    return table


def pick_table(picks: Sequence[PickView], n_picks: int) -> Table:
    """Render the last picks of a job that has ``n_picks``, with every term of each decision."""
    table = Table(title=f"Last picks of {n_picks}", title_justify="left")
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
    """Explain a pick in a sentence."""
    return f"pick {pick.sequence}: {task_name(pick)}, {trial_count(pick.n_trials)}: {pick.why}"


def state_line(job: JobSummary) -> str:
    """Summarise a job in one line."""
    latency = milliseconds(job.total_latency_secs)
    return f"{job.state}  Total latency {latency} ms  {spent(job)}"


def _fit(
    tasks: Sequence[TaskView], n_rows: int | None
) -> tuple[Sequence[TaskView], Sequence[TaskView]]:
    """Return the tasks with the largest shares that fit, in the order of the table; the others."""
    if n_rows is None or len(tasks) <= n_rows:
        return tasks, []
    heaviest = sorted(tasks, key=lambda task: (-task.share, task.id))
    kept = {task.id for task in heaviest[: n_rows - 1]}
    return (
        [task for task in tasks if task.id in kept],
        [task for task in tasks if task.id not in kept],
    )


def _terms(terms: dict[str, Any]) -> str:
    shown = {name: value for name, value in terms.items() if name not in _BOOKKEEPING}
    return ", ".join(f"{name} {_short(value)}" for name, value in shown.items())


def _short(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
