"""docs/cli.md describes exactly the commands and options of the program."""

import re
from typing import Any

import pytest
import typer

from tests.docs.documents import ROOT, section
from tuner.cli.main import app

_TEXT = (ROOT / "docs" / "cli.md").read_text()
_EVERYWHERE = {"--help"}


def _commands(command: Any, name: str) -> dict[str, Any]:
    """Return every command without subcommands by its full name."""
    if not hasattr(command, "commands"):
        return {name: command}
    return {
        full_name: leaf
        for word, inner in command.commands.items()
        for full_name, leaf in _commands(inner, f"{name} {word}").items()
    }


PROGRAM: Any = typer.main.get_command(app)
COMMANDS = _commands(PROGRAM, "tuner")


def _options(command: Any) -> set[str]:
    names = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    }
    return names - _EVERYWHERE


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_section_with_all_its_options(name: str) -> None:
    """Every option of a command is in its section."""
    text = section(_TEXT, f"`{name}`")

    assert text, f"docs/cli.md has no section for {name}"
    assert _options(COMMANDS[name]) - set(_documented(text)) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_section_describes_only_options_of_its_command(name: str) -> None:
    """Every row of an option table names options of the command."""
    text = section(_TEXT, f"`{name}`")

    assert set(_documented(text)) - _options(COMMANDS[name]) == set()


def test_every_section_describes_an_existing_command() -> None:
    """No section is left over after a command was removed."""
    described = re.findall(r"^## `(tuner [^-`][^`]*)`", _TEXT, re.MULTILINE)

    assert set(described) - set(COMMANDS) == set()


def test_options_before_the_command_have_a_section() -> None:
    """The section describes exactly these options, except those of shell completion."""
    options = {name for name in _options(PROGRAM) if "completion" not in name}

    assert set(_documented(section(_TEXT, "`tuner --server`"))) == options


def test_every_option_says_what_it_does() -> None:
    """``--help`` describes every option."""
    bare = [
        f"{name} {parameter.opts[0]}"
        for name, command in COMMANDS.items()
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]

    assert not bare


def _documented(text: str) -> list[str]:
    rows = re.findall(r"^\| (`-.*?) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(-[-a-z]+)", row)]
