"""``tuner replay``: allocators on jobs and recordings."""

import gzip
import sys
from pathlib import Path

import pytest

from scheduler.allocators import ALLOCATORS
from tests.cli import ROOT
from tests.tuner.cli.commands.conftest import Shell

CURVES = sorted((ROOT / "benchmarks" / "scheduler" / "curves").glob("*.jsonl.gz"))


def test_job_is_replayed_by_every_allocator(tuned: Shell) -> None:
    """Job 1 has two tasks with one round each, so each allocator spends its three trials."""
    answer = tuned("replay", "1", "--json")

    assert answer.status == 0
    replays = answer.json["replays"]
    assert [replay["allocator"] for replay in replays] == list(ALLOCATORS)
    assert {replay["trials"] for replay in replays} == {3}
    assert "small: to 4.0000 ms" in tuned("replay", "1").out


def test_saved_curves_replay_like_the_job(tuned: Shell) -> None:
    """A recording replays like its job, and the same job gives the same bytes."""
    saved = tuned.folder / "small.jsonl.gz"
    job = tuned("replay", "1", "--save", str(saved), "--json").json
    first = saved.read_bytes()
    tuned("replay", "1", "--save", str(saved))

    assert tuned("replay", str(saved), "--json").json == job
    assert saved.read_bytes() == first


@pytest.mark.parametrize("path", CURVES, ids=lambda path: path.name)
def test_shipped_curves_replay(tuned: Shell, path: Path) -> None:
    """Every allocator comes within one percent on each recording of the repository."""
    replays = tuned("replay", str(path), "--json").json["replays"]

    assert len(replays) == len(ALLOCATORS)
    for replay in replays:
        assert all(reached["trials"] is not None for reached in replay["reached"])


def test_three_networks_are_shipped() -> None:
    """The comparison of allocators uses at least three."""
    assert len(CURVES) >= 3


def test_plot_is_a_picture(tuned: Shell) -> None:
    """A PNG with a panel for each network."""
    plot = tuned.folder / "curves.png"

    assert tuned("replay", "1", "--plot", str(plot)).status == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_names_the_extra(
    tuned: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    plot = tuned.folder / "none.png"

    answer = tuned("replay", "1", "--plot", str(plot))

    assert answer.status == 2
    assert "plots need the extra plot" in answer.err
    assert not plot.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a recording"),
        (b"hello", "not a recording"),
        (gzip.compress(b'{"version": 1, "network": "n"}\n')[:-12], "damaged"),
        (gzip.compress(b'{"version": 9, "network": "n"}\n'), "version 9, not 1"),
        (gzip.compress(b'{"version": 1, "network": "n", "origin": {}}\n'), "no task"),
        (gzip.compress(b'{"version": 1, "network": "n"}\n{"name": "a"}\n'), "best_secs"),
    ],
    ids=["empty", "text", "truncated", "newer", "no tasks", "fields"],
)
def test_damaged_recordings_are_rejected(shell: Shell, content: bytes, words: str) -> None:
    """One line says what is wrong with the file."""
    path = shell.folder / "curves.jsonl.gz"
    path.write_bytes(content)

    answer = shell("replay", str(path))

    assert answer.status == 2
    assert words in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("replay", "9"), "no job 9"),
        (("replay", "missing.gz"), "cannot read missing.gz"),
        (("replay", "1", "--allocator", "best"), "unknown allocator 'best'"),
    ],
)
def test_wrong_requests_are_rejected(tuned: Shell, arguments: tuple[str, ...], words: str) -> None:
    """The error names what is wrong."""
    answer = tuned(*arguments)

    assert answer.status == 2
    assert words in answer.err


def test_job_without_a_valid_trial_reaches_nothing(tuned: Shell) -> None:
    """All trials of job 2 failed, so no allocator reaches its final latency."""
    answer = tuned("replay", "2")

    assert answer.status == 0
    assert "never" in answer.out
