"""The task scheduler table: its columns, for each place that shows it, and its rows as text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.formatting import (
    count,
    job_facts,
    milliseconds,
    percent,
    printable,
    source,
    throughput,
    told_apart,
)
from tuner.schemas import JobView, TaskView


@dataclass(frozen=True)
class TaskColumn:
    """A column of numbers in terminals, text, CSV, reports and on the dashboard.

    Attributes:
        name: Name in CSV and in addresses that sort by it, with the unit.
        title: Heading for people.
        value: Returns the number of a task in that unit; None if unknown.
        text: Returns it as people read it.
        rank: Rank in a terminal that is too narrow; 0 is never left out.
    """

    name: str
    title: str
    value: Callable[[TaskView], float | None]
    text: Callable[[TaskView], str]
    rank: int = 0


COLUMNS = (
    TaskColumn("weight", "Calls", lambda task: task.weight, lambda task: count(task.weight)),
    TaskColumn(
        "latency_ms",
        "Latency (ms)",
        lambda task: _scaled(task.latency_secs, 1e3),
        lambda task: milliseconds(task.latency_secs),
    ),
    TaskColumn(
        "gflops",
        "GFLOPS",
        lambda task: task.gflops or None,
        lambda task: throughput(task.gflops),
        2,
    ),
    TaskColumn(
        "roof_percent",
        "Roof",
        lambda task: _scaled(task.roof_share, 100.0),
        lambda task: percent(task.roof_share),
        3,
    ),
    TaskColumn(
        "trials",
        "Trials",
        lambda task: task.trials,
        lambda task: count(task.trials) + (" (all)" if task.exhausted else ""),
    ),
    TaskColumn(
        "failed",
        "Failed",
        lambda task: task.failed,
        lambda task: count(task.failed) if task.failed else "",
        4,
    ),
    TaskColumn(
        "share_percent",
        "Share",
        lambda task: _scaled(task.share or None, 100.0),
        lambda task: percent(task.share or None),
    ),
)
TITLES = ("Task", "Name", *(column.title for column in COLUMNS), "Origin")


def rows(tasks: Sequence[TaskView]) -> list[tuple[str, ...]]:
    """Return the rows of the table, a cell for each of ``TITLES``."""
    names = told_apart([task.name for task in tasks], [task.workload for task in tasks])
    return [
        (
            str(task.task_id),
            name,
            *(column.text(task) for column in COLUMNS),
            source(task.origin, task.variant),
        )
        for task, name in zip(tasks, names, strict=True)
    ]


def lines(view: JobView) -> list[str]:
    """Return the table of a job, and the facts below it, as aligned lines; ``*`` is running."""
    table = [TITLES, *rows(view.tasks)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    marks = [" ", *("*" if task.running else " " for task in view.tasks)]
    aligned = [mark + _line(row, widths) for mark, row in zip(marks, table, strict=True)]
    aligned.insert(1, "-" * max(map(len, aligned)))
    return [printable(line) for line in [*aligned, "", *job_facts(view)]]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if title == "Name" else cell.rjust(width)
        for title, cell, width in zip(TITLES, row, widths, strict=True)
    ]
    return "  ".join(cells).rstrip()


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
