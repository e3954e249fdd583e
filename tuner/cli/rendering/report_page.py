"""A job as a page that stands alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner import formatting
from tuner.reporting import task_columns
from tuner.reporting.pages import template
from tuner.schemas import FailureView, HistoryPoint, HistoryView, JobView

# Size of the chart's area of curves, in units of its view box.
_WIDTH, _HEIGHT = 1000.0, 260.0


@dataclass(frozen=True)
class Curve:
    """The latency over trials as a step line in the units of the chart.

    Attributes:
        points: Corners of the line, ``x,y`` pairs as SVG reads them.
        first_secs: First latency of the whole network, seconds.
        last_secs: Last one.
        top_secs: Latency at the top of the chart; its bottom is 0.
        n_trials: Trials at its right end; its left end is 0.
    """

    points: str
    first_secs: float
    last_secs: float
    top_secs: float
    n_trials: int


def as_page(view: JobView, history: HistoryView, failures: Sequence[FailureView]) -> str:
    """Return the page of a job: its result, its curve, its tasks and its failures."""
    page = template(
        "tuner.cli.rendering",
        "report_page.html",
        ms=formatting.milliseconds,
        clock=formatting.clock,
        count=formatting.count,
        counted=formatting.counted,
        stamp=formatting.utc_time,
        target_name=formatting.target_name,
        source=formatting.source,
    )
    tasks = sorted(view.tasks, key=lambda task: -(task.share or 0.0))
    names = formatting.told_apart([task.name for task in tasks], [task.workload for task in tasks])
    return page.render(
        job=view.job,
        view=view,
        curve=curve_of(history.points),
        rows=list(zip(tasks, names, strict=True)),
        columns=task_columns.COLUMNS,
        n_open=sum(task.latency_secs is None for task in view.tasks),
        failures=failures,
    )


def curve_of(points: Sequence[HistoryPoint]) -> Curve | None:
    """Return the latency over trials; None before every task has a record."""
    known = [(p.trials, p.total_latency_secs) for p in points if p.total_latency_secs is not None]
    if not known:
        return None
    n_trials, top = max(known[-1][0], 1), max(secs for _, secs in known)
    corners: list[tuple[float, float]] = []
    for trials, secs in known:
        x, y = _WIDTH * trials / n_trials, _HEIGHT * (1 - secs / top)
        if corners:
            corners.append((x, corners[-1][1]))
        corners.append((x, y))
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    return Curve(text, known[0][1], known[-1][1], top, n_trials)
