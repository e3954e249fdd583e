"""The page of the corpus says what passes, what fails and why, and what changed."""

from pathlib import Path

import pytest

from benchmarks.corpus.entries import Entry, Zoo
from benchmarks.corpus.report import write_page
from benchmarks.corpus.results import (
    Result,
    mean_ratio,
    parse_summary,
    with_times_of,
    without_times,
    write_summary,
)

_ENTRIES = [Entry(name, "classification", Zoo(name)) for name in ("fast", "slow", "broken")]


def _passed(name: str, latency: float) -> Result:
    return Result(
        name,
        stage="done",
        extract_secs=4.0,
        n_tasks=7,
        agrees=True,
        library_secs=latency,
        peer_secs={"onnxruntime": 1.0},
        date="2026-01-01",
        revision="now",
    )


_RESULTS = {
    "fast": _passed("fast", 0.5),
    "slow": _passed("slow", 2.0),
    "broken": Result("broken", stage="extract", error="no operator A|B", date="2026-01-01"),
}


def test_the_summary_has_mean_and_worst() -> None:
    """The mean is geometric, and of networks that pass."""
    page = write_page(_ENTRIES, _RESULTS, {}, "now")

    assert "geometric mean of 2 | 1.00 |" in page
    assert "| the same, worst | 2.0 (slow) |" in page
    assert "| load, build and agree | 2 (67%) | 95 % |" in page


def test_a_failure_has_its_stage_and_reason() -> None:
    """Text that would end the cell of a table is escaped."""
    page = write_page(_ENTRIES, _RESULTS, {}, "now")

    assert "| broken | extract | no operator A\\|B |" in page
    assert "1 results are of an earlier state of the tuner." in page


def test_a_network_that_did_not_run_is_in_the_matrix() -> None:
    """It is not counted as a failure."""
    page = write_page(_ENTRIES, {"fast": _RESULTS["fast"]}, {}, "now")

    assert "| broken | classification | zoo:broken | not run |" in page
    assert "| load, build and agree | 1 (100%) | 95 % |" in page


@pytest.mark.parametrize(
    ("before", "line"),
    [
        (_passed("broken", 1.0), "- broken now fails: no operator"),
        (_passed("slow", 4.0), "- slow: 4.00 to 2.00"),
        (Result("fast", stage="build", error="no", date="2026-01-01"), "- fast now passes"),
    ],
)
def test_changes_since_the_run_before_are_listed(before: Result, line: str) -> None:
    """A network that passes or fails now is listed, and one whose ratio changed much."""
    page = write_page(_ENTRIES, _RESULTS, {before.name: before}, "now")

    assert line in page


def test_a_small_change_is_not_listed() -> None:
    """Runs on one machine differ by more than a tenth."""
    page = write_page(_ENTRIES, _RESULTS, {"slow": _passed("slow", 2.2)}, "now")

    assert "- slow" not in page


def test_a_run_beside_other_work_keeps_the_times_of_the_run_before() -> None:
    """Such a run shows that the network still passes; a failure has no times."""
    untimed = without_times(_passed("slow", 9.0))
    failed = Result("slow", stage="build", error="no", is_timed=False)

    kept = with_times_of(untimed, _passed("slow", 2.0))

    assert untimed.ratio("onnxruntime") is None
    assert (kept.ratio("onnxruntime"), kept.extract_secs) == (2.0, 4.0)
    assert with_times_of(failed, _passed("slow", 2.0)) == failed
    page = write_page(_ENTRIES, {"slow": kept}, {}, "now")
    assert "1 results are of runs beside other work" in page


def test_the_summary_file_keeps_results(tmp_path: Path) -> None:
    """The file has a line for each network, and reads as it was written."""
    file = tmp_path / "corpus.json"

    write_summary(file, _RESULTS.values())

    assert parse_summary(file.read_text()) == _RESULTS
    assert len(file.read_text().splitlines()) == len(_RESULTS) + 2


def test_without_ratios_there_is_no_mean() -> None:
    """A failed network has no ratio."""
    assert mean_ratio([_RESULTS["broken"]], "onnxruntime") is None
