"""docs/cli.md knows every command and option, and none that is gone."""

import re
from typing import Any

import pytest
import typer

from tests.docs.documents import ROOT, section
from tuner.cli.main import app

_TEXT = (ROOT / "docs" / "cli.md").read_text()
_EVERYWHERE = {"--help"}


def _commands(command: Any, name: str) -> dict[str, Any]:
    """Every command that does something, by what one types."""
    if not hasattr(command, "commands"):
        return {name: command}
    return {
        found: leaf
        for word, inner in command.commands.items()
        for found, leaf in _commands(inner, f"{name} {word}").items()
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
    """An option that is missing there is an option that nobody finds."""
    text = section(_TEXT, f"`{name}`")

    assert text, f"docs/cli.md has no section for {name}"
    assert _options(COMMANDS[name]) - set(_documented(text)) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_section_describes_no_option_that_is_gone(name: str) -> None:
    """Every row of an option table names options that the command takes."""
    text = section(_TEXT, f"`{name}`")

    assert set(_documented(text)) - _options(COMMANDS[name]) == set()


def test_no_section_describes_a_command_that_is_gone() -> None:
    """Every section about a command names one."""
    described = re.findall(r"^## `(tuner [^-`][^`]*)`", _TEXT, re.MULTILINE)

    assert set(described) - set(COMMANDS) == set()


def test_options_before_the_command_have_a_section() -> None:
    """All of them, and none that is gone; those that every program has need no words."""
    options = {name for name in _options(PROGRAM) if "completion" not in name}

    assert set(_documented(section(_TEXT, "`tuner --server`"))) == options


def test_every_option_says_what_it_does() -> None:
    """``--help`` leaves no option without a word."""
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
