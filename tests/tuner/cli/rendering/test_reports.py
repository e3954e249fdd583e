"""Rendering of the reports of the Python API."""

import json
from dataclasses import replace

import pytest

from tests.tuner.views import task_view
from tuner.cli.rendering.reports import (
    show_tasks_of_network,
    show_tuning,
    tasks_of_network_as_json,
    tuning_as_json,
)
from tuner.reporting.reports import ExtractedTask, ExtractReport, TuneReport
from tuner.tables import Rows


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print as in a pipe, whatever terminal the tests run in."""
    monkeypatch.delenv("COLUMNS", raising=False)


def extract_report(*, definitions: bool) -> ExtractReport:
    """Return a network of two tasks."""
    tasks = Rows([ExtractedTask("abc", "dense", 2, 4e6), ExtractedTask("def", "relu", 1, 1e6)])
    texts = {task.workload: f"IR of {task.name}" for task in tasks}
    return ExtractReport(
        "mlp", "0" * 64, "llvm", 3, ["1 operator"], tasks, texts if definitions else {}
    )


def test_definitions_are_printed_below_the_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary counts tasks, kernel calls and operations of one inference."""
    show_tasks_of_network(extract_report(definitions=True))

    printed = capsys.readouterr().out
    assert "2 tasks, 3 kernel calls, 9.00 MFLOP" in printed
    assert "note: 1 operator" in printed
    assert "IR of relu" in printed


def test_json_has_definitions_only_on_request() -> None:
    """Each task then has its own."""
    plain = json.loads(json.dumps(tasks_of_network_as_json(extract_report(definitions=False))))
    defined = tasks_of_network_as_json(extract_report(definitions=True))

    assert plain["tasks"][0] == {"workload": "abc", "name": "dense", "weight": 2, "flop": 4e6}
    assert "definitions" not in plain
    assert [task["definition"] for task in defined["tasks"]] == ["IR of dense", "IR of relu"]


def test_a_report_ends_with_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    """It says why the finals made the latency larger than the search had it."""
    report = TuneReport(1, "mlp", "llvm", Rows([task_view(latency_secs=1e-3)]), 2e-3, 8, 2.0, 0.5)
    show_tuning(report)
    plain = capsys.readouterr().out
    show_tuning(replace(report, untuned_latency_secs=5e-3, searched_latency_secs=1.9e-3))
    printed = capsys.readouterr().out
    show_tuning(replace(report, untuned_latency_secs=1.9e-3))

    assert "1.9000 ms; the finals, timed later on a slower machine" in capsys.readouterr().out
    assert "Untuned" not in plain
    assert "The search had" not in plain
    assert "5.0000 ms; tuning made it 2.50 times as fast." in printed
    assert "The search had 1.9000 ms" in printed


def test_tasks_without_a_best_record_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """The latency of the network is then unknown, null in JSON."""
    tasks = Rows([task_view(latency_secs=1e-3), task_view()])
    report = TuneReport(1, "mlp", "llvm", tasks, None, 8, 2.0, 0.5, busy={"local": 0.5})

    show_tuning(report)

    printed = capsys.readouterr().out
    assert "Best records for 1 of 2 tasks; raise the budget for the others." in printed
    assert (
        "Estimated total latency: - ms; 16 trials on these tasks, 8 of them now, in 2 s." in printed
    )
    value = json.loads(json.dumps(tuning_as_json(report)))
    assert (value["total_latency_secs"], value["busy"]) == (None, {"local": 0.5})
