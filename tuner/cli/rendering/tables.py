"""Tables of jobs, tasks and picks for a terminal."""

from collections.abc import Sequence

from tuner.cli.rendering.grid import Column, Grid
from tuner.formatting import (
    DASH,
    age,
    clock,
    count,
    counted,
    local_time,
    milliseconds,
    percent,
    short_name,
    spent,
    task_name,
    told_apart,
)
from tuner.reporting import task_columns
from tuner.schemas import DeviceInfo, JobSummary, PickView, TaskComparison, TaskView

# Terms that resume a job and explain nothing.
_BOOKKEEPING = ("reason", "newest_record")


def task_table(tasks: Sequence[TaskView], *, n_rows: int | None = None) -> Grid:
    """Render the task scheduler table; one row sums up the tasks beyond ``n_rows``."""
    table = Grid(
        Column("Task", "number"),
        Column("Name", "name"),
        *(Column(each.title, "number", each.rank) for each in task_columns.COLUMNS),
        Column("Origin", rank=5),
        title="Task scheduler",
    )
    heaviest = sorted(tasks, key=lambda task: (-task.share, task.id))
    n_shown = len(tasks) if n_rows is None or len(tasks) <= n_rows else n_rows - 1
    kept, hidden = {task.task_id for task in heaviest[:n_shown]}, heaviest[n_shown:]
    for task, cells in zip(tasks, task_columns.rows(tasks), strict=True):
        if task.task_id in kept:
            table.add(*cells, style="bold cyan" if task.running else "")
    if hidden:
        sums = {
            "Name": f"{counted(len(hidden), 'more task')}",
            "Trials": count(sum(task.trials for task in hidden)),
            "Share": percent(sum(task.share for task in hidden)),
        }
        table.add(*(sums.get(title, "") for title in task_columns.TITLES))
    return table


def job_table(jobs: Sequence[JobSummary]) -> Grid:
    """Render a list of jobs."""
    has_owners = any(job.owner for job in jobs)
    has_tags = any(job.tags for job in jobs)
    table = Grid(
        Column("Job", "number"),
        Column("Name", "name"),
        Column("State"),
        Column("Network", "name", 5),
        Column("Objective", rank=7),
        Column("Latency (ms)", "number"),
        Column("Priority", "number", 6),
        Column("Trials", "number"),
        Column("Time", "number", 3),
        Column("Changed", rank=4),
        *([Column("Tags", "name", 3)] if has_tags else []),
        *([Column("Owner", "name", 2)] if has_owners else []),
    )
    for job in jobs:
        limit = f"/{job.budget_trials}" if job.budget_trials else ""
        time_limit = f"/{clock(job.budget_secs)}" if job.budget_secs else ""
        table.add(
            str(job.id),
            job.name,
            job.state,
            job.network or DASH,
            job.objective,
            milliseconds(job.total_latency_secs),
            str(job.priority),
            f"{job.spent_trials}{limit}",
            f"{clock(job.spent_secs)}{time_limit}",
            local_time(job.updated),
            *([" ".join(job.tags)] if has_tags else []),
            *([job.owner or ""] if has_owners else []),
        )
    return table


def device_table(devices: Sequence[DeviceInfo]) -> Grid:
    """Render the devices and builders of a service."""
    table = Grid(
        Column("Device", "name"),
        Column("State"),
        Column("Type", "name", 1),
        Column("Job", "number"),
        Column("Busy", "number", 3),
        Column("Seen", rank=2),
        Column("Reason", "prose"),
    )
    for device in devices:
        table.add(
            device.name,
            device.status,
            device.type,
            str(device.job_id or DASH),
            percent(device.busy_share),
            age(device.heartbeat),
            device.reason or DASH,
        )
    return table


def comparison_table(tasks: Sequence[TaskComparison], title: str) -> Grid:
    """Render the workloads of two jobs or libraries, A and B, in their order."""
    table = Grid(
        Column("Workload", rank=2),
        Column("Name", "name"),
        Column("Calls", "number", 3),
        Column("A (ms)", "number"),
        Column("B (ms)", "number"),
        Column("A / B", "number"),
        Column("B saves (ms)", "number", 1),
        Column("Faster"),
        title=title,
    )
    names = told_apart([task.name for task in tasks], [task.workload for task in tasks])
    for task, name in zip(tasks, names, strict=True):
        calls = sorted({str(side.weight) for side in (task.a, task.b) if side is not None})
        table.add(
            short_name(task.workload),
            name,
            "/".join(calls),
            milliseconds(task.a.latency_secs if task.a else None),
            milliseconds(task.b.latency_secs if task.b else None),
            DASH if task.speedup is None else f"{task.speedup:.3f}",
            milliseconds(task.saved_secs),
            task.faster.upper() if len(task.faster) == 1 else task.faster or DASH,
        )
    return table


def pick_table(picks: Sequence[PickView], n_picks: int) -> Grid:
    """Render the last picks of a job that has ``n_picks``, with every term of each decision."""
    table = Grid(
        Column("Pick", "number"),
        Column("At", rank=1),
        Column("Task", "number"),
        Column("Trials", "number"),
        Column("Reason"),
        Column("Terms", "prose"),
        title=f"Last picks of {n_picks}",
    )
    for pick in picks:
        shown = {name: value for name, value in pick.terms.items() if name not in _BOOKKEEPING}
        table.add(
            str(pick.sequence),
            f"{pick.created.astimezone():%H:%M:%S}",
            str(pick.task_id),
            f"{pick.n_trials}{'' if pick.done else ' (open)'}",
            pick.reason,
            ", ".join(f"{name} {_short(value)}" for name, value in shown.items()),
        )
    return table


def why_line(pick: PickView) -> str:
    """Explain a pick in a sentence."""
    return f"pick {pick.sequence}: {task_name(pick)}, {counted(pick.n_trials, 'trial')}: {pick.why}"


def state_line(job: JobSummary) -> str:
    """Summarise a job in one line."""
    latency = milliseconds(job.total_latency_secs)
    return f"{job.state}  Total latency {latency} ms  {spent(job)}"


def _short(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
