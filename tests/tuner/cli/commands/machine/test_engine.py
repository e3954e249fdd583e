"""``tuner engine``: the list of engines, and wrong requests to install one."""

import sys
from pathlib import Path

import pytest

from tests.cli import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Commands on an empty data directory."""
    return Cli(tmp_path)


def test_engines_are_listed_with_their_python(cli: Cli) -> None:
    """Relax runs in this environment; Relay is not installed yet."""
    answer = cli("engine", "ls", "--json")

    relax, relay = answer.json["engines"]
    assert relax == {"name": "relax", "state": "ready", "python": sys.executable}
    assert (relay["name"], relay["state"]) == ("relay", "missing")
    assert relay["python"] == str(cli.data_dir / "engines" / "relay" / "bin" / "python")
    assert cli("engine", "ls").out.splitlines()[1].split()[:2] == ["relay", "missing"]


def test_a_named_python_of_relay_is_not_checked_for_its_version(cli: Cli) -> None:
    """The user who names an environment is responsible for its contents."""
    answer = cli("engine", "ls", "--json", TUNER_RELAY_PYTHON=sys.executable)

    assert answer.json["engines"][1]["state"] == "ready"


def test_an_engine_without_an_environment_cannot_be_installed(cli: Cli) -> None:
    """The error names the engines that can."""
    answer = cli("engine", "install", "relax")

    assert answer.status == 2
    assert answer.complaint.endswith("has no environment of its own; relay can be installed")


def test_a_missing_python_is_rejected(cli: Cli) -> None:
    """The error is one line."""
    answer = cli("engine", "install", "relay", "--python", "/nowhere/python")

    assert (answer.status, answer.complaint) == (
        2,
        "tuner: cannot run /nowhere/python: No such file or directory",
    )


@pytest.mark.parametrize("command", [("tasks",), ("tune", "--trials", "4"), ("build", "-o", "x")])
def test_a_missing_engine_is_an_error_with_its_fix(cli: Cli, command: tuple[str, ...]) -> None:
    """The error names the command that installs it."""
    name, *options = command

    answer = cli(name, "zoo:mlp", "--engine", "relay", *options)

    assert answer.status == 2
    assert "type: tuner engine install relay" in answer.complaint


def test_a_service_does_not_start_without_its_engine(cli: Cli) -> None:
    """The error comes before the server listens."""
    answer = cli("serve", "--engine", "relay", "--port", "0")

    assert answer.status == 2
    assert "type: tuner engine install relay" in answer.complaint
