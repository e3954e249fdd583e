"""``tuner report``: one file that stands alone."""

from pathlib import Path

import pytest
from sqlalchemy import update

from records.models import Workload
from tests.tuner.cli.commands.conftest import Shell
from tests.tuner.cli.commands.test_jobs import Write
from tuner.cli.rendering.report_page import curve_of
from tuner.schemas import HistoryPoint


def test_a_report_stands_alone(tuned: Shell, write: Write, tmp_path: Path) -> None:
    """It has the result, every task by a name of its own, and no address of another file."""
    write(lambda session: session.execute(update(Workload).values(name="dense")))
    path = tmp_path / "report.html"
    answer = tuned("report", "1", "-o", str(path))
    page = path.read_text()

    assert (answer.status, answer.out) == (0, "")
    assert str(path) in answer.err
    assert "4.0000 ms" in page
    assert page.count("<tr><td>dense 00") == page.count("<tr><td>dense 01") == 1
    for part in ("<script", "http://", "https://", "src=", "url("):
        assert part not in page


def test_a_report_without_a_latency_says_so(tuned: Shell, tmp_path: Path) -> None:
    """Nothing is drawn or compared before every task has a record."""
    path = tmp_path / "report.html"
    assert tuned("report", "2", "-o", str(path)).status == 0
    page = path.read_text()
    assert "no record yet for 2 of 2 tasks" in page
    assert "<svg" not in page
    assert tuned("report", "2", "-o", str(tmp_path / "missing" / "x")).status == 2


@pytest.mark.parametrize(
    ("latencies", "points"),
    [
        ([None, None], None),
        ([None, 4.0], "1000.0,0.0"),
        ([4.0, 1.0], "500.0,0.0 1000.0,0.0 1000.0,195.0"),
    ],
)
def test_the_curve_is_a_step_line_from_zero(
    latencies: list[float | None], points: str | None
) -> None:
    """The largest latency is at the top, and a latency holds until the next round."""
    rounds = [
        HistoryPoint(pick=n, trials=8 * n, secs=1.0, total_latency_secs=secs)
        for n, secs in enumerate(latencies, 1)
    ]
    curve = curve_of(rounds)
    assert (curve and curve.points) == points
