"""``tuner libraries``: comparing libraries by their manifests."""

from dataclasses import replace
from pathlib import Path

from tests.tuner.cli.commands.conftest import Shell
from tests.tuner.library.small_library import described, fill
from tuner.library import manifest


def test_libraries_are_compared_by_their_records(shell: Shell, tmp_path: Path) -> None:
    """A subgraph without a record has no latency; what else differs is a line."""
    small = described()
    tuned, fallback = sorted(small.subgraphs, key=lambda each: each.record is None)
    slower = replace(tuned, latency=2 * (tuned.latency or 0.0))
    device = {**small.device, "driver": "2"}
    for name, library in (
        ("old", small),
        ("new", replace(small, subgraphs=(slower, fallback), device=device)),
    ):
        (tmp_path / name).mkdir()
        fill(tmp_path / name)
        manifest.write(tmp_path / name, library)

    shown = shell("libraries", "compare", "old", "new")
    as_json = shell("libraries", "compare", "old", "new", "--json").json

    assert shown.status == 0
    assert "driver: None in A, 2 in B" in shown.out
    assert "`tuner bisect old new`" in shown.err
    assert [(task["speedup"], task["faster"]) for task in as_json["tasks"]] == [
        (0.5, "a"),
        (None, ""),
    ]
    assert as_json["differs"] == {"driver": [None, "2"]}
