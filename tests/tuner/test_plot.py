"""Plots of jobs."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.tuner.profiling.small_profile import PROFILE
from tests.tuner.views import job_summary, task_view
from tuner import plot
from tuner.errors import RequestError
from tuner.reporting.job_report import JobReport
from tuner.schemas import HistoryPoint, HistoryView, JobView, TaskTrials


def report(*latencies_secs: float | None, number: int = 1) -> JobReport:
    """Return a job with a task for each latency, after two rounds."""
    known = [each for each in latencies_secs if each is not None]
    total = 2 * sum(known) if len(known) == len(latencies_secs) else None
    summary = job_summary(id=number, state="done", total_latency_secs=total)
    points = [
        HistoryPoint(pick=1, trials=8, secs=1.0),
        HistoryPoint(pick=2, trials=16, secs=2.0, total_latency_secs=total),
    ]
    rows = [
        task_view(id=row, workload=f"{row:064x}", latency_secs=secs, roof_secs=1e-4)
        for row, secs in enumerate(latencies_secs)
    ]
    history = HistoryView(
        job=number,
        points=points,
        tasks=[TaskTrials(task=row.id, name=row.name, trials=[4, 8]) for row in rows],
    )
    return JobReport(JobView(job=summary, tasks=rows, untuned_latency_secs=1e-2), history)


@pytest.mark.parametrize("draw", [plot.history, plot.trials, plot.roof])
def test_a_plot_is_a_picture(draw: Callable[[JobReport], Any]) -> None:
    """A notebook shows it without pyplot; its axes begin at 0."""
    figure = draw(report(1e-3, 2e-3))

    assert figure._repr_png_().startswith(b"\x89PNG")
    assert 0.0 in (*figure.axes[0].get_xlim(), *figure.axes[0].get_ylim())
    assert "matplotlib.pyplot" not in sys.modules


def test_a_roof_is_of_all_calls() -> None:
    """Both bars are of an inference, with the slowest task first."""
    bars: Any = plot.roof(report(1e-3, 2e-3)).axes[0].patches

    assert [bar.get_width() for bar in bars] == pytest.approx([4.0, 2.0, 0.2, 0.2])


def test_an_unknown_roof_is_named() -> None:
    """Not every device tells its peaks."""
    job = report(1e-3)
    job = replace(job, view=replace(job.view, tasks=[replace(job.tasks[0], roof_secs=None)]))

    assert plot.roof(job).axes[0].get_title() == "mlp, job 1: the roof of its device is unknown"


def test_tasks_are_compared_by_workload() -> None:
    """A task that one job does not have keeps an empty place there."""
    axes: Any = plot.compare(report(1e-3, 2e-3), report(5e-4, number=2)).axes[0]

    assert axes.get_title() == "6 ms and 1 ms: the second is 6.00 times as fast"
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx([4.0, 2.0, 0.0, 1.0])


def test_kernels_of_profiles_are_compared() -> None:
    """The label counts the kernels with a record; the title has the times of whole runs."""
    first, *others = PROFILE.kernels
    faster = replace(PROFILE, plain_secs=PROFILE.plain_secs / 2, kernels=(first,))
    axes: Any = plot.compare(PROFILE, faster).axes[0]

    assert axes.get_title().endswith("the second is 2.00 times as fast")
    widths = [bar.get_width() / 1e3 for bar in axes.patches]
    assert sorted(widths) == pytest.approx(
        sorted([first.secs, first.secs, *(each.secs for each in others), *[0.0] * len(others)])
    )
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[1].endswith("1 of 1 kernel from records")


@pytest.mark.parametrize(
    ("draw", "reason"),
    [
        (plot.history, "job 1 has no latency yet"),
        (plot.trials, "job 1 has no rounds yet"),
        (plot.roof, "no task has a best record"),
        (lambda job: plot.compare(job, job), "no time is known in job 1 of mlp"),
    ],
)
def test_a_job_without_results_is_not_drawn(draw: Callable[[JobReport], Any], reason: str) -> None:
    """The error says what is missing."""
    job = report(None)
    job = replace(job, history=replace(job.history, tasks=[]))

    with pytest.raises(RequestError, match=reason):
        draw(job)


def test_a_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how to install the extra."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    plot._figure_class.cache_clear()

    with pytest.raises(RequestError, match=r"extra plot: pip install 'subgraph-tuner\[plot\]'"):
        plot.history(report(1e-3))
