"""docs/cli.md describes exactly the commands of the program, whose help pages describe options."""

import re
from typing import Any

import pytest

from tests.docs.documents import ROOT, section
from tuner.cli.main import make_program

_TEXT = (ROOT / "docs" / "cli.md").read_text()


def _commands(command: Any, name: str) -> dict[str, Any]:
    """Return every command without subcommands by its full name."""
    if not hasattr(command, "commands"):
        return {name: command}
    return {
        full_name: leaf
        for word, inner in command.commands.items()
        for full_name, leaf in _commands(inner, f"{name} {word}").items()
    }


COMMANDS = _commands(make_program(), "tuner")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_section(name: str) -> None:
    """A section says what the command does; the site adds the table of its options."""
    assert section(_TEXT, f"`{name}`"), f"docs/cli.md has no section for {name}"


def test_every_section_describes_an_existing_command() -> None:
    """No section is left over after a command was removed."""
    described = re.findall(r"^## `(tuner [^-`][^`]*)`", _TEXT, re.MULTILINE)

    assert set(described) - set(COMMANDS) == set()


def test_every_option_says_what_it_does() -> None:
    """``--help`` describes every option."""
    bare = [
        f"{name} {parameter.opts[0]}"
        for name, command in COMMANDS.items()
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]

    assert not bare
