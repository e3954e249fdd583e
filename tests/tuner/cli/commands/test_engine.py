"""``tuner engine``: which engines there are, and what installing one refuses."""

import sys
from pathlib import Path

import pytest

from tests.cli import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Commands on an empty data directory."""
    return Cli(tmp_path)


def test_engines_are_listed_with_what_runs_them(cli: Cli) -> None:
    """One is ours, the other is not installed yet."""
    answer = cli("engine", "ls", "--json")

    relax, relay = answer.json["engines"]
    assert relax == {"name": "relax", "state": "ready", "python": sys.executable}
    assert (relay["name"], relay["state"]) == ("relay", "missing")
    assert relay["python"] == str(cli.data_dir / "engines" / "relay" / "bin" / "python")
    assert cli("engine", "ls").out.splitlines()[1].split()[:2] == ["relay", "missing"]


def test_a_python_of_another_environment_is_taken_as_it_is(cli: Cli) -> None:
    """Whoever names one made it."""
    answer = cli("engine", "ls", "--json", TUNER_RELAY_PYTHON=sys.executable)

    assert answer.json["engines"][1]["state"] == "ready"


def test_an_engine_of_our_own_environment_is_not_installed(cli: Cli) -> None:
    """There is nothing to do."""
    answer = cli("engine", "install", "relax")

    assert answer.status == 2
    assert answer.complaint.endswith("needs no environment of its own; relay does")


def test_a_python_that_is_not_there_is_refused(cli: Cli) -> None:
    """In one line."""
    answer = cli("engine", "install", "relay", "--python", "/nowhere/python")

    assert (answer.status, answer.complaint) == (
        2,
        "tuner: cannot run /nowhere/python: No such file or directory",
    )


@pytest.mark.parametrize("command", [("tasks",), ("tune", "--trials", "4"), ("build", "-o", "x")])
def test_a_command_says_what_to_type_for_a_missing_engine(
    cli: Cli, command: tuple[str, ...]
) -> None:
    """Nothing is started, and nothing stored."""
    name, *options = command

    answer = cli(name, "zoo:mlp", "--engine", "relay", *options)

    assert answer.status == 2
    assert "type: tuner engine install relay" in answer.complaint


def test_a_service_does_not_start_without_its_engine(cli: Cli) -> None:
    """It says so before it listens."""
    answer = cli("serve", "--engine", "relay", "--port", "0")

    assert answer.status == 2
    assert "type: tuner engine install relay" in answer.complaint
