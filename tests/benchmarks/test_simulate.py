"""The benchmark ``simulate`` from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CURVES = str(ROOT / "benchmarks" / "curves" / "mobilenet.jsonl.gz")
SMALL = ("--devices", "2", "--networks", "1", "--tasks", "4", "--trials-per-round", "8")
SHORT = ("--minutes", "0.5", "--warm-up", "0.1")


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run the benchmark to its end."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.simulate", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_fleet_is_simulated_to_one_json_object() -> None:
    """The database holds exactly the records that the simulated devices reported."""
    answer = run(CURVES, *SMALL, *SHORT, "--json")

    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert report["n_trials"] > 0
    assert report["check"]["clean"] is True


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((CURVES, "--networks", "9", "--tasks", "8"), "8 tasks are too few for 9"),
        ((CURVES, "--minutes", "1", "--warm-up", "2"), "leaves nothing of 60 s"),
        ((CURVES, "--hangs", "2"), "hangs must be from 0 to 1"),
        (("missing.jsonl.gz",), "missing.jsonl.gz"),
    ],
)
@pytest.mark.slow("starts the simulation again and again")
def test_a_request_that_means_nothing_is_refused(words: tuple[str, ...], reason: str) -> None:
    """The exit status is 2, and the reason is one line."""
    answer = run(*words)

    assert answer.returncode == 2
    assert reason in answer.stderr
