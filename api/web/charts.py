"""Charts as Plotly figures in plain data, which a script of the page draws.

Colours are names of the style sheet, such as ``var(--series-1)``, which the script resolves so
that a chart follows the theme. Each chart comes with a table of its numbers, for screen readers
and browsers without scripts.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.formatting import clock, count, counted, milliseconds, percent
from tuner.schemas import HistoryPoint, HistoryView

N_COLOURS = 12
_MAX_ROWS = 20


@dataclass(frozen=True)
class Chart:
    """A chart, with a sentence and a table of the same content.

    Attributes:
        id: Id of the element.
        title: Title with the unit.
        figure: Data and layout for Plotly.
        heads: Column heads of the table.
        rows: Printed rows of the table.
        wide: True for a chart over the full width of the page.
    """

    id: str
    title: str
    summary: str
    figure: dict[str, Any]
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    wide: bool = False


@dataclass(frozen=True)
class Curve:
    """The latency of a job over time, with its name in the legend."""

    name: str
    points: Sequence[HistoryPoint]


def latency_over_trials(curves: Sequence[Curve]) -> Chart:
    """Draw the estimated latency of the network over the trials spent."""
    return _latency(
        "over-trials", "Estimated total latency (ms) over trials", "trials", curves, _trials_of
    )


def latency_over_time(curves: Sequence[Curve]) -> Chart:
    """Draw the estimated latency of the network over the minutes spent."""
    return _latency(
        "over-time", "Estimated total latency (ms) over minutes", "minutes", curves, _minutes_of
    )


def trials_per_task(history: HistoryView) -> Chart:
    """Stack the trials of each task over the trials of the job."""
    trials = [point.trials for point in history.points]
    data = [
        _trace(
            _task_label(task.task, task.name),
            trials,
            task.trials,
            _series(index) if task.task is not None else "var(--series-rest)",
            stackgroup="tasks",
            line={"width": 1, "color": "var(--surface)"},
            hovertemplate="%{y:,}",
        )
        for index, task in enumerate(history.tasks)
    ]
    rows = [
        (
            _task_label(task.task, task.name),
            count(task.trials[-1]),
            percent(task.trials[-1] / trials[-1] if trials[-1] else 0.0),
        )
        for task in history.tasks
    ]
    layout = _layout("trials of the job", "trials")
    layout["height"] = 340
    layout["legend"] = {"font": {"size": 11}, "x": 1.01, "y": 1, "traceorder": "reversed"}
    n_trials = trials[-1] if trials else 0
    busiest = f"; most went to {rows[0][0]} ({rows[0][2]})" if rows else ""
    return Chart(
        id="per-task",
        title="Trials per task",
        summary=f"{counted(n_trials, 'trial')}{busiest}.",
        figure={"data": data, "layout": layout},
        heads=("Task", "Trials", "Share"),
        rows=rows,
        wide=True,
    )


def _latency(
    chart_id: str,
    title: str,
    axis: str,
    curves: Sequence[Curve],
    x_of: Callable[[HistoryPoint], float],
) -> Chart:
    drawn = [
        (curve.name, [p for p in curve.points if p.total_latency_secs is not None])
        for curve in curves
    ]
    data = [
        _trace(
            name,
            [x_of(point) for point in points],
            [(point.total_latency_secs or 0.0) * 1e3 for point in points],
            _series(index),
            line={"width": 2, "color": _series(index), "shape": "hv"},
            hovertemplate="%{y:,.4f} ms",
        )
        for index, (name, points) in enumerate(drawn)
    ]
    rows = [
        (name, f"{x_of(point):,.4g}", milliseconds(point.total_latency_secs))
        for name, points in drawn
        for point in _thinned(points)
    ]
    layout = _layout(axis, "ms")
    layout["showlegend"] = len(curves) > 1
    return Chart(
        id=chart_id,
        title=title,
        summary=" ".join(_progress(name, points) for name, points in drawn),
        figure={"data": data, "layout": layout},
        heads=("Job", axis.capitalize(), "Latency (ms)"),
        rows=rows,
    )


def _progress(name: str, points: Sequence[HistoryPoint]) -> str:
    if not points:
        return f"{name}: no latency of the whole network yet."
    first, last = points[0], points[-1]
    return (
        f"{name}: from {milliseconds(first.total_latency_secs)} ms after "
        f"{counted(first.trials, 'trial')} to "
        f"{milliseconds(last.total_latency_secs)} ms after {count(last.trials)}, "
        f"in {clock(last.secs)}."
    )


def _thinned(points: Sequence[HistoryPoint]) -> list[HistoryPoint]:
    """Return at most ``_MAX_ROWS`` points, including the first and the last."""
    if len(points) <= _MAX_ROWS:
        return list(points)
    step = (len(points) - 1) / (_MAX_ROWS - 1)
    return [points[round(index * step)] for index in range(_MAX_ROWS)]


def _trace(name: str, x: Sequence[float], y: Sequence[float], colour: str, **more: Any) -> Any:
    stacked = {"fillcolor": colour} if "stackgroup" in more else {}
    return {
        "type": "scatter",
        # A line of one point would be invisible.
        "mode": "lines" if len(x) > 1 else "lines+markers",
        # Plotly interprets some markup in names, which are plain text here.
        "name": html.escape(name, quote=False),
        "x": list(x),
        "y": list(y),
        **stacked,
        **more,
    }


def _layout(x_title: str, y_title: str) -> dict[str, Any]:
    return {
        "height": 300,
        "margin": {"l": 64, "r": 16, "t": 8, "b": 48},
        "hovermode": "x unified",
        "showlegend": True,
        "legend": {"font": {"size": 11}, "orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "xaxis": {"title": {"text": x_title}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": y_title}, "rangemode": "tozero"},
    }


def _series(index: int) -> str:
    return f"var(--series-{index % N_COLOURS + 1})"


def _task_label(task: int | None, name: str) -> str:
    return name if task is None else f"{task} · {name}"


def _trials_of(point: HistoryPoint) -> float:
    return point.trials


def _minutes_of(point: HistoryPoint) -> float:
    return round(point.secs / 60, 4)
