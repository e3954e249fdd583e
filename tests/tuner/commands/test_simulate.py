"""``tuner simulate`` from the command line."""

import pytest

from tests.tuner.commands.conftest import ROOT, Shell

CURVES = str(ROOT / "benchmarks" / "curves" / "mobilenet.jsonl.gz")
SMALL = ("--devices", "2", "--networks", "1", "--tasks", "4", "--trials-per-round", "8")
SHORT = ("--minutes", "0.5", "--warm-up", "0.1")


def test_a_fleet_is_simulated_to_one_json_object(shell: Shell) -> None:
    """The records that are there are those that the devices told of; nothing is left behind."""
    answer = shell("simulate", CURVES, *SMALL, *SHORT, "--json")

    assert answer.status == 0, answer.err
    assert answer.json["n_trials"] > 0
    assert answer.json["check"]["clean"] is True
    assert not (shell.folder / "data").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "Missing argument"),
        ((CURVES, "--networks", "9", "--tasks", "8"), "8 tasks are too few for 9"),
        ((CURVES, "--minutes", "1", "--warm-up", "2"), "leaves nothing of 60 s"),
        ((CURVES, "--hangs", "2"), "hangs must be from 0 to 1"),
        (("missing.jsonl.gz",), "missing.jsonl.gz"),
    ],
)
def test_a_request_that_means_nothing_is_refused(
    shell: Shell, words: tuple[str, ...], reason: str
) -> None:
    """Exit status 2, and the reason in one line."""
    answer = shell("simulate", *words)

    assert answer.status == 2
    assert reason in answer.err
