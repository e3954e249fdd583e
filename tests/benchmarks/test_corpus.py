"""Networks run within limits, and every result is stored as soon as it is there."""

from pathlib import Path

import pytest

from benchmarks.corpus import results
from benchmarks.corpus.catalogue import ENTRIES, entry_named
from benchmarks.corpus.entries import Entry
from benchmarks.corpus.files import Files
from benchmarks.corpus.results import Result
from benchmarks.corpus.runner import Limits, Runner

_MLP = entry_named("zoo-mlp")


def _run(folder: Path, entries: list[Entry], limits: Limits) -> dict[str, Result]:
    """Run networks; return the stored results by name."""
    runner = Runner(Files(folder), folder / "results", limits, "now")
    reported: list[Result] = []
    runner.run_all(entries, 1, reported.append)
    files = (folder / "results" / f"{entry.name}.json" for entry in entries)
    assert [results.read(file) for file in files] == reported
    return {result.name: result for result in reported}


@pytest.mark.tvm
@pytest.mark.slow("builds networks for a minute")
def test_the_quick_networks_load_build_and_agree(tmp_path: Path) -> None:
    """They come without a download: a zoo network, and one that torch exports."""
    entries = [entry for entry in ENTRIES if entry.is_quick]
    lines: list[str] = []
    Files(tmp_path).fetch(entries, lines.append)

    by_name = _run(tmp_path, entries, Limits())

    assert len(lines) == len(entries) >= 2
    for result in by_name.values():
        assert result.is_passed, result.error
        assert (result.ratio("onnxruntime") or 0.0) > 0.0
        assert result.n_tasks


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(secs=0.0), "takes longer than 0 s"),
        (Limits(n_bytes=1 << 20), "needs more than 0 GiB of memory"),
    ],
)
def test_a_network_that_exceeds_a_limit_is_ended(
    tmp_path: Path, limits: Limits, reason: str
) -> None:
    """The limit is the reason of the failure."""
    result = _run(tmp_path, [_MLP], limits)["zoo-mlp"]

    assert not result.is_passed
    assert result.error == reason
    assert (result.revision, bool(result.date)) == ("now", True)
