"""The task scheduler table as text and in a terminal."""

import io

from rich.console import Console

from tests.tuner.views import job_summary, task_view
from tuner.cli.rendering.tables import task_table
from tuner.reporting import task_columns
from tuner.schemas import JobView

_TASKS = [
    task_view(
        name="conv2d\nrelu",
        weight=3,
        latency_secs=2e-3,
        gflops=1000.0,
        roof_secs=1e-3,
        roof_share=0.5,
        share=0.75,
        trials=1064,
        failed=2,
        exhausted=True,
        running=True,
        origin="rules:direct",
    ),
    task_view(id=1, task_id=8, name="relu", trials=5),
    task_view(id=2, task_id=9, name="add", trials=6),
]
_VIEW = JobView(job=job_summary(budget_trials=100), tasks=_TASKS)


def test_the_table_is_aligned_and_printable() -> None:
    """Names cannot break lines, and a running task has a mark."""
    head, rule, first, second, third, *rest = task_columns.lines(_VIEW)

    assert head.split() == " ".join(task_columns.TITLES).split()
    assert set(rule) == {"-"}
    assert (
        " ".join(first.split())
        == "* 7 conv2d relu 3 2.0000 1000.0 50.0% 1,064 (all) 2 75.0% rules:direct"
    )
    assert second.split()[:5] == ["8", "relu", "2", "-", "-"]
    assert {len(head), len(first), len(second), len(third)} == {len(rule)}
    assert "spent      64 of 100 trials, 0:01:01" in rest
    assert "latency    unknown: no best record yet for 2 of 3 tasks" in rest


def test_tasks_that_do_not_fit_are_summed_up_under_their_columns() -> None:
    """The last row has their trials and their share."""
    stream = io.StringIO()

    Console(file=stream, width=200).print(task_table(_TASKS, n_rows=2))

    _, head, *_, last = stream.getvalue().splitlines()
    assert last.split() == ["2", "more", "tasks", "11", "0.0%"]
    for title, sum_ in (("Trials", "11"), ("Share", "0.0%")):
        assert head.index(title) + len(title) == last.index(sum_) + len(sum_)
