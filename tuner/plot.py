"""Plots of jobs and profiles, drawn by matplotlib: functions return figures for notebooks.

``figure.savefig("history.png")`` writes it. No function uses ``pyplot``, so that no window opens.
"""

from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from tuner.errors import RequestError, install_command
from tuner.formatting import counted, short_milliseconds, told_apart
from tuner.profiling.results import LibraryProfile
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
    names = _names([task.name for task in tasks], [task.workload for task in tasks])
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


def compare(a: JobReport | LibraryProfile, b: JobReport | LibraryProfile) -> "Figure":
    """Plot the times of two jobs or profiles in an inference, side by side, matched by workload.

    A job has the time of the best record of each task, a profile that of each kernel in the
    network.

    Raises:
        RequestError: If neither has a time, or matplotlib is not installed.
    """
    sides = [_compared(each) for each in (a, b)]
    rows = sorted(
        {**sides[1].rows, **sides[0].rows},
        key=lambda row: -max(side.rows.get(row, ("", 0.0))[1] for side in sides),
    )[:_MAX_TASKS]
    if not rows:
        raise RequestError(f"no time is known in {sides[0].label} or {sides[1].label}")
    totals = [side.total_secs for side in sides]
    title = " and ".join(f"{short_milliseconds(total)} ms" for total in totals)
    if totals[0] and totals[1]:
        title += f": the second is {totals[0] / totals[1]:.2f} times as fast"
    figure, axes = _axes(title, n_bars=2 * len(rows))
    for side, offset in zip(sides, (-0.2, 0.2), strict=True):
        widths = [1e3 * side.rows.get(row, ("", 0.0))[1] for row in rows]
        axes.barh([at + offset for at in range(len(rows))], widths, height=0.4, label=side.label)
    names = [sides[row not in sides[0].rows].rows[row][0] for row in rows]
    axes.set_yticks(range(len(rows)), _names(names, rows))
    axes.invert_yaxis()
    axes.set_xlabel("time in an inference (ms)")
    axes.legend(loc="lower right")
    return figure


class _Compared(NamedTuple):
    """A side of a comparison: names and seconds in an inference, by workload or else by name."""

    label: str
    total_secs: float | None
    rows: dict[str, tuple[str, float]]


def _compared(side: JobReport | LibraryProfile) -> _Compared:
    if isinstance(side, LibraryProfile):
        kernels = {each.workload or each.name: (each.name, each.secs) for each in side.kernels}
        n_tuned = sum(each.record_secs is not None for each in side.kernels)
        label = (
            f"{side.model_name}, {n_tuned} of {counted(len(side.kernels), 'kernel')} from records"
        )
        return _Compared(label, side.plain_secs, kernels)
    label = f"job {side.id} of {side.network}, {counted(side.view.job.spent_trials, 'trial')}"
    tasks = [task for task in side.tasks if task.latency_secs is not None]
    rows = {task.workload: (task.name, _inference_ms(task) / 1e3) for task in tasks}
    return _Compared(label, side.total_latency_secs, rows)


def _inference_ms(task: TaskView) -> float:
    return (task.latency_secs or 0.0) * task.weight * 1e3


def _names(names: list[str], workloads: list[str]) -> list[str]:
    return [_short(name) for name in told_apart(names, workloads)]


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

    class ShownFigure(Figure):  # type: ignore[misc]  # types of matplotlib are not read
        """Figure that a notebook shows as PNG."""

        def _repr_png_(self) -> bytes:
            content = BytesIO()
            self.savefig(content, format="png", dpi=120)
            return content.getvalue()

    return ShownFigure
