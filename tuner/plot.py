"""Plots of jobs, drawn by matplotlib: each function returns a figure that a notebook shows.

``figure.savefig("history.png")`` writes it. No function uses ``pyplot``, so that no window opens.
"""

from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

from tuner.errors import RequestError, install_command
from tuner.formatting import short_milliseconds, told_apart, trial_count
from tuner.reporting.job_report import JobReport
from tuner.schemas import TaskView

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Tasks with most time that get a bar.
_MAX_TASKS = 15
_MAX_CHARS = 36
_BAR_INCHES = 0.3


def history(job: JobReport) -> "Figure":
    """Plot the latency of a network over the trials of its job, and the untuned latency.

    Raises:
        RequestError: If a task has no best record yet, or matplotlib is not installed.
    """
    known = [
        (point.trials, point.total_latency_secs * 1e3)
        for point in job.history.points
        if point.total_latency_secs is not None
    ]
    if not known:
        raise RequestError(f"job {job.id} has no latency yet: a task has no best record")
    figure, axes = _axes(f"{job.network}, job {job.id}")
    trials, latencies = zip(*known, strict=True)
    axes.step(trials, latencies, where="post", marker="." if len(known) < 50 else "")
    untuned = job.view.untuned_latency_secs
    if untuned is not None:
        axes.axhline(untuned * 1e3, color="gray", linestyle="--", linewidth=1, label="untuned")
        axes.legend(loc="lower left")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("trials")
    axes.set_ylabel("estimated latency (ms)")
    return figure


def trials(job: JobReport) -> "Figure":
    """Plot how the trials of a job were divided among its tasks.

    Raises:
        RequestError: If the job has no rounds yet, or matplotlib is not installed.
    """
    total = [point.trials for point in job.history.points]
    if not total or not job.history.tasks:
        raise RequestError(f"job {job.id} has no rounds yet")
    figure, axes = _axes(f"{job.network}, job {job.id}")
    names = [_short(task.name) for task in job.history.tasks]
    axes.stackplot(total, *(task.trials for task in job.history.tasks), labels=names)
    axes.set_xlim(0, max(total[-1], 1))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("trials of the job")
    axes.set_ylabel("trials by task")
    handles, labels = axes.get_legend_handles_labels()
    # The uppermost area comes first.
    axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    return figure


def roof(job: JobReport) -> "Figure":
    """Plot the time of each task in an inference, and the least time that its device allows.

    Raises:
        RequestError: If no task has a best record, or matplotlib is not installed.
    """
    tasks = [task for task in job.tasks if task.latency_secs is not None]
    if not tasks:
        raise RequestError(f"job {job.id} has no latency yet: no task has a best record")
    tasks.sort(key=_inference_ms, reverse=True)
    tasks = tasks[:_MAX_TASKS]
    figure, axes = _axes(f"{job.network}, job {job.id}", n_bars=len(tasks))
    names = _names(tasks)
    axes.barh(names, [_inference_ms(task) for task in tasks], color="tab:blue", label="time")
    with_roof = [
        (name, task.roof_secs * task.weight * 1e3, task.roof_share)
        for name, task in zip(names, tasks, strict=True)
        if task.roof_secs is not None
    ]
    if not with_roof:
        axes.set_title(f"{job.network}, job {job.id}: the roof of its device is unknown")
    else:
        axes.barh(
            [name for name, _, _ in with_roof],
            [secs for _, secs, _ in with_roof],
            height=0.4, color="tab:orange", label="roof",
        )  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlabel("time in an inference (ms)")
    axes.legend(loc="lower right")
    return figure


def compare(a: JobReport, b: JobReport) -> "Figure":
    """Plot the time of each task of two jobs, side by side; tasks are matched by workload.

    Raises:
        RequestError: If neither has a task with a best record, or matplotlib is not installed.
    """
    times = [
        {task.workload: _inference_ms(task) for task in job.tasks if task.latency_secs is not None}
        for job in (a, b)
    ]
    known = {task.workload: task for job in (b, a) for task in job.tasks}
    shown = sorted(
        times[0].keys() | times[1].keys(),
        key=lambda workload: -max(each.get(workload, 0.0) for each in times),
    )[:_MAX_TASKS]
    if not shown:
        raise RequestError(f"no task of job {a.id} or job {b.id} has a best record")
    figure, axes = _axes(_title(a, b), n_bars=2 * len(shown))
    for job, each, offset in zip((a, b), times, (-0.2, 0.2), strict=True):
        places = [place + offset for place in range(len(shown))]
        widths = [each.get(workload, 0.0) for workload in shown]
        axes.barh(places, widths, height=0.4, label=_label(job))
    axes.set_yticks(range(len(shown)), _names([known[workload] for workload in shown]))
    axes.invert_yaxis()
    axes.set_xlabel("time in an inference (ms)")
    axes.legend(loc="lower right")
    return figure


def _title(a: JobReport, b: JobReport) -> str:
    totals = (a.total_latency_secs, b.total_latency_secs)
    text = " and ".join(f"{short_milliseconds(total)} ms" for total in totals)
    if totals[0] and totals[1]:
        text += f": the second is {totals[0] / totals[1]:.2f} times as fast"
    return text


def _label(job: JobReport) -> str:
    return f"job {job.id} of {job.network}, {trial_count(job.view.job.spent_trials)}"


def _inference_ms(task: TaskView) -> float:
    return (task.latency_secs or 0.0) * task.weight * 1e3


def _names(tasks: list[TaskView]) -> list[str]:
    names = told_apart([task.name for task in tasks], [task.workload for task in tasks])
    return [_short(name) for name in names]


def _short(name: str) -> str:
    """Cut the middle out of a long name, of which the end tells it apart."""
    half = _MAX_CHARS // 2
    return name if len(name) <= _MAX_CHARS else f"{name[: half - 1]}…{name[-half:]}"


def _axes(title: str, *, n_bars: int = 0) -> "tuple[Figure, Axes]":
    """Return a figure and its axes, high enough for a number of bars."""
    figure = _figure_class()(
        figsize=(8, max(3.6, 1.2 + _BAR_INCHES * n_bars)), layout="constrained"
    )
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes


@cache
def _figure_class() -> Any:
    """Return the class of figures, which notebooks show without ``pyplot``."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RequestError(f"plots need the extra plot: {install_command('plot')}") from error

    class ShownFigure(Figure):
        """Figure that a notebook shows as PNG."""

        def _repr_png_(self) -> bytes:
            content = BytesIO()
            self.savefig(content, format="png", dpi=120)
            return content.getvalue()

    return ShownFigure
