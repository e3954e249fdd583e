"""Charts as data, and the tables of the same numbers."""

from api.web import charts
from api.web.charts import Curve
from tuner.schemas import HistoryPoint, HistoryView, TaskTrials


def _points(n: int) -> list[HistoryPoint]:
    return [
        HistoryPoint(
            pick=i, trials=i * 8, secs=i * 60.0, total_latency_secs=None if i < 2 else 0.1 / i
        )
        for i in range(1, n + 1)
    ]


def test_a_curve_starts_at_the_first_known_latency() -> None:
    """Points without a latency are left out, and units are minutes and milliseconds."""
    chart = charts.latency_over_time([Curve("net", _points(3))])

    (trace,) = chart.figure["data"]
    assert trace["x"] == [2.0, 3.0]
    assert trace["y"] == [50.0, 0.1 / 3 * 1e3]
    assert chart.rows[0] == ("net", "2", "50.0000")
    assert "from 50.0000 ms after 16 trials" in chart.summary


def test_a_table_has_both_ends_of_a_long_curve() -> None:
    """Hundreds of points are thinned to a few rows, including the first and the last."""
    chart = charts.latency_over_trials([Curve("net", _points(300))])

    assert len(chart.rows) == 20
    assert chart.rows[0][1] == "16"
    assert chart.rows[-1][1] == "2,400"


def test_names_are_escaped_for_plotly() -> None:
    """Plotly interprets tags in names, so they are escaped there and nowhere else."""
    chart = charts.latency_over_trials([Curve("<a href='x'>", _points(3))])

    assert chart.figure["data"][0]["name"] == "&lt;a href='x'&gt;"
    assert chart.rows[0][0] == "<a href='x'>"


def test_shares_of_tasks_are_of_all_trials() -> None:
    """Each row has the share of the job's trials."""
    tasks = [
        TaskTrials(task=0, name="conv", trials=[8, 12]),
        TaskTrials(task=None, name="other tasks", trials=[0, 4]),
    ]
    history = HistoryView(job=1, points=_points(2), tasks=tasks)
    chart = charts.trials_per_task(history)

    assert chart.rows == [("0 · conv", "12", "75.0%"), ("other tasks", "4", "25.0%")]
    assert chart.summary.startswith("16 trials; ")
    assert {trace["stackgroup"] for trace in chart.figure["data"]} == {"tasks"}


def test_one_trial_is_singular() -> None:
    """The noun agrees with the number before it."""
    points = [HistoryPoint(pick=1, trials=1, secs=60.0, total_latency_secs=0.1)]

    assert charts.trials_per_task(HistoryView(job=1, points=points, tasks=[])).summary == "1 trial."


def test_a_job_without_rounds_has_empty_charts() -> None:
    """A job without rounds has charts without points."""
    assert charts.trials_per_task(HistoryView(job=1, points=[], tasks=[])).rows == []
    assert (
        "no latency of the whole network" in charts.latency_over_trials([Curve("net", [])]).summary
    )
