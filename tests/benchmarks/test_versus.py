"""The results of the comparison with other runtimes survive an interruption, and add up."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _versus_report, versus
from benchmarks.corpus.catalogue import entry_named


def line(network: str, ratio: float, **changes: Any) -> dict[str, Any]:
    """Return a line of a network that was tuned and timed."""
    return {
        "network": network,
        "new": network in versus.NEW,
        "n_trials": 10,
        "library_ms": 2.0 * ratio,
        "onnxruntime_ms": 2.0,
        "openvino_ms": 3.0,
        "fastest_peer": "onnxruntime",
        "ratio": ratio,
        "disturbed": False,
        "agrees": True,
        **changes,
    }


_LOSS = {"kernels": ["conv2d[1x8]"], "nodes": ["c"], "library_ms": 1.5, "peer_ms": 1.0}


def test_half_of_the_networks_are_new_and_all_are_in_the_corpus() -> None:
    """At least 14, none twice."""
    names = [*versus.KNOWN, *versus.NEW]

    assert len(set(names)) == len(names) >= 14
    assert len(versus.NEW) * 2 == len(names)
    assert all(entry_named(name) for name in names)


def test_the_last_whole_line_of_a_network_counts(tmp_path: Path) -> None:
    """A process that was killed leaves half a line."""
    file = tmp_path / "results.jsonl"
    lines = [line("a", 1.2), line("b", 0.9), line("a", 1.1)]
    file.write_text("\n".join(json.dumps(each) for each in lines) + '\n{"network": "b", "rat')

    stored = _versus_report.read(file)

    assert {name: each["ratio"] for name, each in stored.items()} == {"a": 1.1, "b": 0.9}
    assert _versus_report.read(tmp_path / "missing") == {}


def test_the_mean_is_geometric_and_failures_prevent_the_goal() -> None:
    """New networks have a mean of their own."""
    lines = [line("light-vgg19", 0.5), line("edsr", 2.0)]

    summary = _versus_report.summarise(lines)
    failed = _versus_report.summarise([line("a", 0.9), {**line("b", 1.0), "error": "no"}])

    assert (summary["mean_ratio"], summary["mean_ratio_of_new"]) == pytest.approx((1.0, 2.0))
    assert (summary["worst_network"], summary["reached"]) == ("edsr", False)
    assert _versus_report.summarise([line("a", 0.8)])["reached"]
    assert failed["failed"] == ["b"]
    assert not failed["reached"]
    assert not _versus_report.summarise([])["reached"]


def test_the_table_has_a_row_for_each_network_and_the_losses() -> None:
    """A network that failed has its reason, a disturbed one a mark."""
    broken = {"network": "broken", "new": True, "error": "a | b"}
    text = _versus_report.table([line("edsr", 1.5, losses=[_LOSS], disturbed=True), broken])

    assert "| edsr | new | 10 | 3 | 2 | 3 | ~1.50 |" in text
    assert "| broken | new | a / b | | | | |" in text
    assert "Geometric mean against the faster peer 1.50, 1.50 of the new ones" in text
    assert "- edsr: conv2d[1x8] takes 1.5 ms, onnxruntime 1 ms" in text
